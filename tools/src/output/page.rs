//! A report as one HTML page that needs no other file.

use std::fmt::Write;

use super::chart::Picture;
use super::text::{bytes, percent, seconds};
use crate::commands::report::{Record, Report};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;max-width:1060px;margin:2em auto;padding:0 1em}\
h1{font-size:1.6em;margin-bottom:.2em}h2{font-size:1.2em;margin-top:2em}\
figure{margin:1em 0}figure svg{width:100%;height:auto;border:1px solid #e4e4e4}figcaption,.note{color:#555;font-size:.93em}\
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85em;font-variant-numeric:tabular-nums}\
th,td{padding:.2em .7em;border-bottom:1px solid #e4e4e4;text-align:right;white-space:nowrap}\
th{background:#f6f6f6;position:sticky;top:0}.left{text-align:left}.wrong{color:#b00020;font-weight:bold}";

/// The whole page.
pub(crate) fn render(report: &Report, pictures: &[Picture]) -> String {
    let mut page = String::new();
    // Writing into a String does not fail.
    let _ = write_page(&mut page, report, pictures);
    page
}

fn write_page(page: &mut String, report: &Report, pictures: &[Picture]) -> std::fmt::Result {
    let machine = &report.machine;
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>convoke: {} layers</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>convoke: the layers of published networks</h1>\n\
         <p>{}<br>{}</p>\n<ul>\n",
        report.layers.len(),
        escape(&machine.headline()),
        escape(&machine.versions())
    )?;
    for line in machine.limits() {
        writeln!(page, "<li>{}</li>", escape(&line))?;
    }
    let caches = &machine.caches;
    let [l1, l2, l3] = [caches.l1, caches.l2, caches.l3].map(bytes);
    writeln!(page, "<li>caches: L1 {l1} and L2 {l2} a core, L3 {l3}; {} cores</li>\n</ul>", machine.cores)?;
    if report.interrupted {
        writeln!(page, "<p class=\"wrong\">Interrupted: not all layers were measured.</p>")?;
    }
    writeln!(
        page,
        "<p class=\"note\">Plain NCHW in and out, weights packed outside of the timing, warm caches, the fastest run counts. Every result was compared \
         with a double-precision reference. A layer's limit is the FMA peak, or the read bandwidth of the level that its input, weights and output \
         live in: whichever takes longer. Winograd makes fewer multiply-adds than the definition, and may exceed the FMA peak.</p>"
    )?;
    for picture in pictures {
        let caption = escape(&picture.caption);
        writeln!(page, "<figure>\n{}\n<figcaption>{caption}</figcaption>\n</figure>", picture.svg)?;
    }
    page.push_str("<h2>By kind of layer (geometric means)</h2>\n");
    let rows = report.summary.iter().map(|s| {
        let count = s.layers.to_string();
        [s.kind.clone(), count, format!("{:.1}", s.gflops), percent(s.share_of_peak), percent(s.share_of_limit)]
    });
    table(page, &["kind", "layers", "GFLOP/s", "of FMA peak", "of limit"], rows, 1)?;
    page.push_str("<h2>All layers</h2>\n");
    table(page, &HEADER, report.layers.iter().map(row), 4)?;
    for wrong in report.layers.iter().filter(|r| !r.figures.within_bound) {
        let (name, times) = (escape(&wrong.name), wrong.figures.error_of_bound);
        writeln!(page, "<p class=\"wrong\">{name}: wrong, {times:.1} times the bound of its error</p>")?;
    }
    page.push_str("</body>\n</html>\n");
    Ok(())
}

const HEADER: [&str; 11] = [
    "layer",
    "geometry",
    "algorithm",
    "kernel",
    "best",
    "GFLOP/s",
    "of FMA peak",
    "limit",
    "of limit",
    "workspace",
    "error of bound",
];

fn row(record: &Record) -> [String; 11] {
    let f = &record.figures;
    [
        record.name.clone(),
        f.geometry.clone(),
        f.algorithm.clone(),
        format!("{} {}", f.isa, f.kernel),
        seconds(f.seconds_best),
        format!("{:.1}", f.gflops),
        percent(f.share_of_peak),
        f.limit.clone(),
        percent(f.share_of_limit),
        bytes(f.workspace_bytes),
        format!("{:.3}", f.error_of_bound),
    ]
}

/// A table whose columns up to `numbers` are text.
fn table<const N: usize>(
    page: &mut String,
    header: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
    numbers: usize,
) -> std::fmt::Result {
    let class = |column: usize| if column < numbers { " class=\"left\"" } else { "" };
    page.push_str("<div class=\"scroll\"><table>\n<tr>");
    for (column, name) in header.iter().enumerate() {
        write!(page, "<th{}>{name}</th>", class(column))?;
    }
    page.push_str("</tr>\n");
    for row in rows {
        page.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            write!(page, "<td{}>{}</td>", class(column), escape(cell))?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
    Ok(())
}

/// Text that HTML does not take for markup.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_is_escaped() {
        assert_eq!(escape("1x2 -> <\"&\">"), "1x2 -&gt; &lt;&quot;&amp;&quot;&gt;");
    }
}
