use convoke_kernels::activation::Activation;
use convoke_kernels::*;
use std::time::Instant;
fn main() {
    let isa: Isa = std::env::args().nth(1).unwrap().parse().unwrap();
    let mr: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let kb: usize = std::env::args().nth(3).map_or(100000, |s| s.parse().unwrap());
    let cap: usize = std::env::args().nth(4).map_or(20 << 10, |s| s.parse().unwrap());
    let all = pixel_kernels::<f32>(isa);
    let nr = all.last().unwrap().nr();
    let of = |m: usize| all.iter().find(|k| k.mr() == m && k.nr() == nr).unwrap();
    let peak = {
        let k = spatial_kernels::<f32>(isa).iter().max_by_key(|k| k.fmas()).unwrap();
        let kc = 256;
        let a = vec![0.5f32; kc * k.mr()];
        let b = vec![0.5f32; k.nr()];
        let off = RowOffsets::new(vec![0; kc]);
        let mut t = vec![0.0; k.mr() * k.nr()];
        let mut best = 0f64;
        for _ in 0..30 {
            let s = Instant::now();
            for _ in 0..200 {
                k.partial(&a, &b, off.rows(0..kc), Prefetch::NONE, &mut t, false);
            }
            best = best.max(200.0 * 2.0 * (kc * k.mr() * k.nr()) as f64 / s.elapsed().as_secs_f64() / 1e9);
        }
        best
    };
    println!("peak {peak:.1}");
    for (hw, k, m) in [
        (160usize, 64usize, 64usize),
        (52, 64, 64),
        (14, 256, 1024),
        (14, 1024, 256),
        (56, 64, 256),
        (56, 256, 64),
        (112, 32, 16),
        (112, 16, 96),
        (56, 96, 24),
        (56, 24, 144),
        (14, 64, 384),
        (14, 384, 64),
        (7, 320, 1280),
        (7, 512, 2048),
    ] {
        let p = hw * hw;
        let nbuf = ((40usize << 20) / ((p * (k + m)) * 4)).clamp(2, 16);
        let panels = m.div_ceil(nr);
        let xs: Vec<Vec<f32>> = (0..nbuf).map(|_| vec![0.5; p * k]).collect();
        let mut ys: Vec<Vec<f32>> = (0..nbuf).map(|_| vec![0.0; p * m]).collect();
        let w = vec![0.01f32; panels * nr * k];
        let b = vec![0.1f32; panels * nr];
        let zeros = vec![0.0f32; k];
        let act = activation_kernel(isa, Activation::Clamp(0.0, 6.0));
        let count = p.div_ceil(mr);
        let kbs = k.div_ceil(k.div_ceil(kb));
        let per = (cap / (k * 4 * mr)).max(1);
        let mut table = vec![0u32; per * 2 * (mr + 1)];
        let mut tiles_ = vec![0f32; per * mr * nr];
        let mut layer = |x: &[f32], y: &mut [f32]| {
            let start = |t: usize| t * (p / count) + t.min(p % count);
            for t0 in (0..count).step_by(per) {
                let t1 = (t0 + per).min(count);
                let mut e = 0;
                for t in t0..t1 {
                    table[e] = 0;
                    let s = start(t);
                    for i in 0..start(t + 1) - s {
                        table[e + 1 + i] = ((s + i) * k) as u32;
                    }
                    e += 1 + start(t + 1) - s;
                }
                for pn in 0..panels {
                    let n = nr.min(m - pn * nr);
                    let narrow = nr.min(n.div_ceil(nr / 2) * (nr / 2));
                    for k0 in (0..k).step_by(kbs) {
                        let k1 = (k0 + kbs).min(k);
                        let wide = p % count;
                        for (a, bb) in [(t0.min(wide), t1.min(wide)), (t0.max(wide), t1.max(wide))] {
                            if a >= bb {
                                continue;
                            }
                            let s = start(a);
                            let q = start(a + 1) - s;
                            let tiles = bb - a;
                            let kern = if narrow == nr {
                                of(q)
                            } else {
                                all.iter().find(|x| x.mr() == q && x.nr() == narrow).unwrap()
                            };
                            let base = if a < wide { 0 } else { (wide.max(t0) - t0) * (p / count + 2) };
                            let taps = PixelTaps::new(&table[base..][..(q + 1) * tiles], tiles, q);
                            let px = Pixels { x: &x[k0..], zeros: &zeros, channels: k1 - k0, taps };
                            let w = &w[pn * nr * k + k0 * narrow..][..narrow * (k1 - k0)];
                            let tl = &mut tiles_[(a - t0) * mr * nr..];
                            if k1 < k {
                                kern.partial(&px, w, tl, k0 > 0);
                            } else {
                                let e = PixelEpilogue {
                                    bias: &b[pn * nr..][..n],
                                    residual: Residual::NONE,
                                    residual_ld: 0,
                                    activation: act,
                                };
                                kern.finish(
                                    &px,
                                    w,
                                    tl,
                                    k0 > 0,
                                    &mut Dest::from_slice(&mut y[s * m + pn * nr..]),
                                    m,
                                    n,
                                    &e,
                                );
                            }
                        }
                    }
                }
            }
        };
        let (mut warm, mut cold) = (9e9f64, 9e9f64);
        for r in 0..400 {
            let i = r % nbuf;
            let t = Instant::now();
            layer(&xs[i], &mut ys[i]);
            cold = cold.min(t.elapsed().as_secs_f64());
        }
        for _ in 0..200 {
            let t = Instant::now();
            layer(&xs[0], &mut ys[0]);
            warm = warm.min(t.elapsed().as_secs_f64());
        }
        let g = 2.0 * (p * k * m) as f64 / 1e9;
        println!(
            "{k}->{m}@{hw}: warm {:.1} us {:.0}%  rotating {:.1} us {:.0}%",
            warm * 1e6,
            100.0 * g / warm / peak,
            cold * 1e6,
            100.0 * g / cold / peak
        );
    }
}
