//! The layers of published networks, and some others: the CSV files of `benches/shapes`, and
//! other files in the same form.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};
use convoke::{Conv, ConvTranspose, Geometry, Op, Operator};

/// The built-in files, by name.
const FILES: [(&str, &str); 11] = [
    ("resnet50.csv", include_str!("../../benches/shapes/resnet50.csv")),
    ("vgg16.csv", include_str!("../../benches/shapes/vgg16.csv")),
    ("classification.csv", include_str!("../../benches/shapes/classification.csv")),
    ("mobilenet.csv", include_str!("../../benches/shapes/mobilenet.csv")),
    ("segmentation.csv", include_str!("../../benches/shapes/segmentation.csv")),
    ("detection.csv", include_str!("../../benches/shapes/detection.csv")),
    ("generation.csv", include_str!("../../benches/shapes/generation.csv")),
    ("audio.csv", include_str!("../../benches/shapes/audio.csv")),
    ("volumetric.csv", include_str!("../../benches/shapes/volumetric.csv")),
    ("direct.csv", include_str!("../../benches/shapes/direct.csv")),
    ("transposed.csv", include_str!("../../benches/shapes/transposed.csv")),
];

/// First parts of the names of built-in layers that do not name a network.
const NO_NETWORKS: [&str; 6] = ["bilinear", "dw", "dw27x27", "dw3x3", "dw3x3x3", "dw5x5s2"];
/// The network of such layers in reports.
pub const OTHER: &str = "other";

/// Built-in layers that stand for the rest when time is short: at least one of each kind, none of
/// which takes long.
const QUICK: [&str; 12] = [
    "resnet50.c3.3x3",
    "resnet50.c3.3x3s2",
    "alexnet.conv2.5x5",
    "resnet50.c4.1x1.256-1024",
    "mbv2.pw.96-24@56",
    "hifigan.k7d3.128@8192",
    "r2plus1d.3x1x1.288-128@8x28",
    "mbv2.dw3x3.144@56",
    "effnet.dw5x5.672@14",
    "resnext.g32.3x3.128@56",
    "unet.up.2x2s2.128-64@64",
    "dcgan.4x4s2.512-256@8",
];

/// The columns of a file, in order.
const COLUMNS: [&str; 10] =
    ["name", "op", "x", "out_channels", "kernel", "strides", "pads", "dilations", "group", "output_padding"];

/// One layer: an operator with its attributes, and the shape of X.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// The name: the network, the place in it, and what is special about the layer.
    pub name: String,
    /// The operator.
    pub op: Op,
    /// Shape of X: `(N, C, spatial...)`.
    pub x: Vec<usize>,
    /// Shape of W: Conv `(M, C/group, kernel...)`, ConvTranspose `(C, M/group, kernel...)`.
    pub w: Vec<usize>,
    /// One entry for each spatial axis.
    pub strides: Vec<i64>,
    /// All beginnings, then all ends.
    pub pads: Vec<i64>,
    /// One entry for each spatial axis.
    pub dilations: Vec<i64>,
    /// At least 1.
    pub group: i64,
    /// One entry for each spatial axis; only for ConvTranspose.
    pub output_padding: Vec<i64>,
}

impl Layer {
    /// The first part of the name, or [`OTHER`] if it does not name a network.
    #[must_use]
    pub fn network(&self) -> &str {
        let first = self.first_part();
        if NO_NETWORKS.contains(&first) { OTHER } else { first }
    }

    fn first_part(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }

    /// The operator with the layer's attributes.
    #[must_use]
    pub fn operator(&self) -> Operator {
        match self.op {
            Op::Conv => Conv::new(self.w.clone())
                .strides(self.strides.clone())
                .pads(self.pads.clone())
                .dilations(self.dilations.clone())
                .group(self.group)
                .into(),
            Op::ConvTranspose => ConvTranspose::new(self.w.clone())
                .strides(self.strides.clone())
                .pads(self.pads.clone())
                .dilations(self.dilations.clone())
                .group(self.group)
                .output_padding(self.output_padding.clone())
                .into(),
        }
    }

    /// The checked sizes.
    ///
    /// # Errors
    /// Those of the operator: attributes or shapes that do not fit.
    pub fn geometry(&self) -> Result<Geometry> {
        self.operator().geometry(&self.x).with_context(|| format!("layer {}", self.name))
    }
}

/// The floating-point operations of one run, two for each multiply-add. Taps on padding count, as
/// is usual.
#[must_use]
pub fn flops(geometry: &Geometry) -> f64 {
    2.0 * geometry.macs() as f64
}

/// Kinds of layers that need different kernels. Figures are averaged by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerKind {
    /// Two axes, one group, 3x3 with stride and dilation 1: the layers that Winograd is best for.
    Dense3x3,
    /// Two axes, one group, any other kernel.
    DenseOther,
    /// One group, one tap.
    Pointwise,
    /// One spatial axis, one group.
    OneAxis,
    /// Three or more spatial axes, one group.
    Volumetric,
    /// One input channel in each group.
    Depthwise,
    /// Several groups with several channels each.
    Grouped,
    /// ConvTranspose, whatever its shape.
    Transposed,
}

impl LayerKind {
    /// In the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Dense3x3,
        Self::DenseOther,
        Self::Pointwise,
        Self::OneAxis,
        Self::Volumetric,
        Self::Depthwise,
        Self::Grouped,
        Self::Transposed,
    ];

    /// The kind of a geometry.
    #[must_use]
    pub fn of(geometry: &Geometry) -> Self {
        let axes = &geometry.axes;
        if geometry.op == Op::ConvTranspose {
            Self::Transposed
        } else if geometry.group > 1 {
            if geometry.group == geometry.in_channels { Self::Depthwise } else { Self::Grouped }
        } else if axes.iter().all(|a| a.kernel == 1) {
            Self::Pointwise
        } else if axes.len() == 1 {
            Self::OneAxis
        } else if axes.len() > 2 {
            Self::Volumetric
        } else if axes.iter().all(|a| (a.kernel, a.stride, a.dilation) == (3, 1, 1)) {
            Self::Dense3x3
        } else {
            Self::DenseOther
        }
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dense3x3 => "3x3 stride 1",
            Self::DenseOther => "other dense",
            Self::Pointwise => "pointwise",
            Self::OneAxis => "1-D",
            Self::Volumetric => "3-D",
            Self::Depthwise => "depthwise",
            Self::Grouped => "grouped",
            Self::Transposed => "transposed",
        })
    }
}

/// The built-in layers.
///
/// # Panics
/// If a built-in file is malformed; a test reads them all.
#[must_use]
pub fn built_in() -> Vec<Layer> {
    FILES.iter().flat_map(|(name, text)| read(name, text).expect("a test reads the built-in files")).collect()
}

/// The [`built_in`] layers that a quick report has.
///
/// # Panics
/// As `built_in`.
#[must_use]
pub fn quick() -> Vec<Layer> {
    built_in().into_iter().filter(|layer| QUICK.contains(&&*layer.name)).collect()
}

/// Reads the text of a file. `file` is its name in error messages.
///
/// # Errors
/// The call fails for a wrong header, a wrong number of columns, an entry that does not parse,
/// lists of different lengths, a name that occurs twice, or attributes that the operator rejects.
pub fn read(file: &str, text: &str) -> Result<Vec<Layer>> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().with_context(|| file.to_owned())?;
    ensure!(header.iter().eq(COLUMNS), "{file}: the columns must be {}", COLUMNS.join(","));
    let mut layers: Vec<Layer> = Vec::new();
    for record in reader.records() {
        let record = record.with_context(|| file.to_owned())?;
        let line = record.position().map_or(0, csv::Position::line);
        let layer = layer(&record).with_context(|| format!("{file}, line {line}"))?;
        ensure!(layers.iter().all(|l| l.name != layer.name), "{file}, line {line}: {} stands here twice", layer.name);
        layers.push(layer);
    }
    Ok(layers)
}

/// One line of a file.
fn layer(record: &csv::StringRecord) -> Result<Layer> {
    let text = |column: usize| &record[column];
    let op = parse_op(text(1))?;
    let x: Vec<usize> = list(record, 2)?;
    ensure!(x.len() >= 3, "x: {} is not N x C x spatial axes", text(2));
    let axes = x.len() - 2;
    let out_channels: usize = one(record, 3)?;
    let kernel: Vec<usize> = list(record, 4)?;
    let strides = list(record, 5)?;
    let mut pads: Vec<i64> = list(record, 6)?;
    if pads.len() == axes {
        pads.extend_from_within(..);
    }
    let dilations = list(record, 7)?;
    let group: usize = one(record, 8)?;
    let output_padding = list(record, 9)?;
    for (column, len) in [(4, kernel.len()), (5, strides.len()), (7, dilations.len()), (9, output_padding.len())] {
        ensure!(len == axes, "{}: {} has {len} entries, x has {axes} spatial axes", COLUMNS[column], text(column));
    }
    ensure!(pads.len() == 2 * axes, "pads: {} has neither one nor two entries an axis", text(6));
    ensure!(op == Op::ConvTranspose || output_padding.iter().all(|&p| p == 0), "output_padding: Conv has none");
    let (rows, columns) = match op {
        Op::Conv => (out_channels, x[1]),
        Op::ConvTranspose => (x[1], out_channels),
    };
    ensure!(group > 0 && columns % group == 0, "group: {group} does not divide {columns} channels");
    let mut w = vec![rows, columns / group];
    w.extend(kernel);
    let group = group.try_into()?;
    let layer = Layer { name: text(0).to_owned(), op, x, w, strides, pads, dilations, group, output_padding };
    layer.geometry()?;
    Ok(layer)
}

/// An operator by its ONNX name.
///
/// # Errors
/// The call fails for any other name.
pub fn parse_op(name: &str) -> Result<Op> {
    match name {
        "Conv" => Ok(Op::Conv),
        "ConvTranspose" => Ok(Op::ConvTranspose),
        _ => bail!("op: {name:?} is neither Conv nor ConvTranspose"),
    }
}

/// A column that holds one number.
fn one<T: FromStr>(record: &csv::StringRecord, column: usize) -> Result<T> {
    let text = &record[column];
    text.parse().map_err(|_| anyhow!("{}: {text:?} is not a number", COLUMNS[column]))
}

/// A column that holds one number for each axis.
fn list<T: FromStr>(record: &csv::StringRecord, column: usize) -> Result<Vec<T>> {
    let text = &record[column];
    let numbers = text.split('x').map(str::parse).collect::<Result<_, _>>();
    numbers.map_err(|_| anyhow!("{}: {text:?} is not a list of numbers joined by 'x'", COLUMNS[column]))
}

/// A shape in the usual form: `1x64x56x56`.
#[must_use]
pub fn join(dims: &[impl fmt::Display]) -> String {
    dims.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}

/// A geometry in one line: X, Y, kernel, and the attributes that differ from their defaults.
#[must_use]
pub fn describe(geometry: &Geometry) -> String {
    let axes = &geometry.axes;
    let mut text = format!("{} -> {}", join(&geometry.input_shape()), join(&geometry.output_shape()));
    let mut attribute = |name: &str, of: &dyn Fn(&convoke::Axis) -> String, default: &str| {
        let values: Vec<String> = axes.iter().map(of).collect();
        if values.iter().any(|v| v != default) {
            let all_equal = values.windows(2).all(|pair| pair[0] == pair[1]);
            let shown = if all_equal && name != "k" { values[0].clone() } else { values.join("x") };
            text += &format!(" {name}{shown}");
        }
    };
    attribute("k", &|a| a.kernel.to_string(), "");
    attribute("s", &|a| a.stride.to_string(), "1");
    let pads = |a: &convoke::Axis| match a {
        a if a.pad_begin == a.pad_end => a.pad_begin.to_string(),
        a => format!("{}:{}", a.pad_begin, a.pad_end),
    };
    attribute("p", &pads, "0");
    attribute("d", &|a| a.dilation.to_string(), "1");
    if geometry.group > 1 {
        text += &format!(" g{}", geometry.group);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const HEADER: &str = "name,op,x,out_channels,kernel,strides,pads,dilations,group,output_padding\n";

    fn read_line(line: &str) -> Result<Vec<Layer>> {
        read("t.csv", &format!("# a comment\n{HEADER}{line}\n"))
    }

    #[test]
    fn built_in_files_are_well_formed_and_names_unique() {
        let layers = built_in();
        let names: HashSet<_> = layers.iter().map(|l| &l.name).collect();
        assert_eq!(names.len(), layers.len());
        assert!(layers.len() >= 97, "{}", layers.len());
        let kinds: HashSet<_> = layers.iter().map(|l| LayerKind::of(&l.geometry().unwrap())).collect();
        assert_eq!(kinds, LayerKind::ALL.into(), "every kind of layer occurs");
    }

    #[test]
    fn a_quick_report_has_layers_of_every_kind() {
        let layers = quick();
        assert_eq!(layers.len(), QUICK.len(), "each name is that of a layer");
        let kinds: HashSet<_> = layers.iter().map(|l| LayerKind::of(&l.geometry().unwrap())).collect();
        assert_eq!(kinds, LayerKind::ALL.into());
        // No layer takes long, even with the portable kernels.
        assert!(layers.iter().all(|l| l.geometry().unwrap().macs() < 1_000_000_000));
    }

    #[test]
    fn what_is_no_network_is_other() {
        let layers = built_in();
        for part in NO_NETWORKS {
            assert!(layers.iter().any(|l| l.first_part() == part && l.network() == OTHER), "{part}");
        }
        assert!(layers.iter().all(|l| l.network() == OTHER || l.name.starts_with(l.network())));
        assert!(layers.iter().any(|l| l.network() == "resnet50"));
    }

    #[test]
    fn conv_line() {
        let layers = read_line("a, Conv, 2x6x9x8, 4, 3x1, 2x1, 1x0, 1x1, 2, 0x0").unwrap();
        let expected = Layer {
            name: "a".into(),
            op: Op::Conv,
            x: vec![2, 6, 9, 8],
            w: vec![4, 3, 3, 1],
            strides: vec![2, 1],
            pads: vec![1, 0, 1, 0],
            dilations: vec![1, 1],
            group: 2,
            output_padding: vec![0, 0],
        };
        assert_eq!(layers, [expected]);
        let geometry = layers[0].geometry().unwrap();
        assert_eq!(geometry.output_shape(), [2, 4, 5, 8]);
        assert_eq!(flops(&geometry), f64::from(2 * 2 * 4 * 3 * 3 * 5 * 8));
        assert_eq!(describe(&geometry), "2x6x9x8 -> 2x4x5x8 k3x1 s2x1 p1x0 g2");
        assert_eq!(LayerKind::of(&geometry), LayerKind::Grouped);
    }

    #[test]
    fn conv_transpose_line_with_pads_at_both_ends() {
        let layers = read_line("b,ConvTranspose,1x6x5,4,4,2,1x2,1,2,1").unwrap();
        assert_eq!((&layers[0].w, &layers[0].pads), (&vec![6, 2, 4], &vec![1, 2]));
        let geometry = layers[0].geometry().unwrap();
        assert_eq!(geometry.output_shape(), [1, 4, 2 * 4 + 1 + 4 - 3]);
        assert_eq!(flops(&geometry), f64::from(2 * 6 * 2 * 4 * 5));
        assert_eq!(describe(&geometry), "1x6x5 -> 1x4x10 k4 s2 p1:2 g2");
        assert_eq!(LayerKind::of(&geometry), LayerKind::Transposed);
    }

    #[test]
    fn kinds() {
        let kind = |line: &str| LayerKind::of(&read_line(line).unwrap()[0].geometry().unwrap());
        assert_eq!(kind("a,Conv,1x4x8x8,4,3x3,1x1,1x1,1x1,1,0x0"), LayerKind::Dense3x3);
        assert_eq!(kind("a,Conv,1x4x8x8,4,3x3,2x2,1x1,1x1,1,0x0"), LayerKind::DenseOther);
        assert_eq!(kind("a,Conv,1x4x8x8,4,1x1,2x2,0x0,1x1,1,0x0"), LayerKind::Pointwise);
        assert_eq!(kind("a,Conv,1x4x8,4,3,1,1,1,1,0"), LayerKind::OneAxis);
        assert_eq!(kind("a,Conv,1x4x8x8x8,4,3x3x3,1x1x1,1x1x1,1x1x1,1,0x0x0"), LayerKind::Volumetric);
        assert_eq!(kind("a,Conv,1x4x8x8,4,3x3,1x1,1x1,1x1,4,0x0"), LayerKind::Depthwise);
    }

    #[test]
    fn errors_name_file_line_and_column() {
        for (line, part) in [
            ("a,Pool,1x4x8x8,4,3x3,1x1,1x1,1x1,1,0x0", "neither Conv nor ConvTranspose"),
            ("a,Conv,1x4,4,3x3,1x1,1x1,1x1,1,0x0", "x: 1x4"),
            ("a,Conv,1x4x8x8,four,3x3,1x1,1x1,1x1,1,0x0", "out_channels: \"four\""),
            ("a,Conv,1x4x8x8,4,3x,1x1,1x1,1x1,1,0x0", "kernel: \"3x\""),
            ("a,Conv,1x4x8x8,4,3x3,1,1x1,1x1,1,0x0", "strides: 1 has 1 entries, x has 2"),
            ("a,Conv,1x4x8x8,4,3x3,1x1,1x1x1,1x1,1,0x0", "pads: 1x1x1"),
            ("a,Conv,1x4x8x8,4,3x3,1x1,1x1,1x1,3,0x0", "group: 3 does not divide 4"),
            ("a,Conv,1x4x8x8,4,3x3,1x1,1x1,1x1,0,0x0", "group: 0 does not divide 4"),
            ("a,Conv,1x4x8x8,4,3x3,1x1,1x1,1x1,1,1x1", "output_padding: Conv has none"),
            ("a,Conv,1x4x8x8,4,9x9,1x1,0x0,1x1,1,0x0", "layer a"),
            ("a,Conv,1x4x8x8,4,3x3,1x1", "t.csv"),
        ] {
            let error = format!("{:#}", read_line(line).unwrap_err());
            assert!(error.contains("t.csv") && error.contains("line") && error.contains(part), "{line}: {error}");
        }
        let error = read("t.csv", "name,op\n").unwrap_err().to_string();
        assert!(error.contains("t.csv: the columns must be name,op,x,"), "{error}");
        let line = "a,Conv,1x4x8,4,3,1,1,1,1,0";
        assert!(read_line(&format!("{line}\n{line}")).unwrap_err().to_string().contains("line 4: a stands here twice"));
    }
}
