//! Writes a report as one HTML page that needs no other file.

use std::fmt::{Result, Write};

use super::chart::Picture;
use crate::records::{Report, Summary};
use crate::session::{Failure, Figures};

/// The page never scrolls sideways. On a narrow screen, each row of the layers' table becomes a
/// block, with the name of its column beside each number. On a wide one, the pictures stand in two
/// columns; the second picture, which is the tallest, has one beside the next two.
const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1a1a1a;--page:#fff;--quiet:#555;--line:#e4e4e4;--head:#f6f6f6;--wrong:#b00020}\
@media(prefers-color-scheme:dark){:root{--text:#e8e8e8;--page:#16181c;--quiet:#b0b0b0;--line:#3c4046;--head:#24272c;--wrong:#ff6b6b}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--page);max-width:1180px;margin:2em auto;padding:0 1em}\
h1{font-size:1.6em;margin-bottom:.2em}h2{font-size:1.2em;margin-top:2em}\
@media(min-width:1020px){figure:nth-child(2){grid-row:span 3}}\
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:1.5em;align-items:start}\
figure{margin:0;max-width:640px}figure svg{width:100%;height:auto;border:1px solid var(--line)}figcaption,.note{color:var(--quiet);font-size:.93em}\
table{border-collapse:collapse;font-size:.82em;line-height:1.35;font-variant-numeric:tabular-nums}\
th,td{padding:.25em .6em;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}\
th{background:var(--head);position:sticky;top:0}.left{text-align:left;white-space:normal;overflow-wrap:anywhere}\
small{display:block;color:var(--quiet);font-size:.88em}.left+.left small{white-space:nowrap}.wrong,.wrong small{color:var(--wrong);font-weight:bold}\
@media(max-width:900px){.layers,.layers tbody{display:block}.layers tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(11em,1fr));border-bottom:1px solid var(--quiet);padding:.4em 0}\
.layers tr:first-child{display:none}.layers td{border:0;padding:.05em .4em;text-align:left}.layers .left{grid-column:1/-1}\
.layers td:not(.left)::before{content:attr(data-head) \"  \";white-space:pre;color:var(--quiet)}}\
@media(max-width:560px){body{padding:0 .4em;margin:1em auto}}";

/// The whole page.
pub(crate) fn render(report: &Report, pictures: &[Picture]) -> String {
    let mut page = String::new();
    write_page(&mut page, report, pictures).expect("writing into a String does not fail");
    page
}

fn write_page(page: &mut String, report: &Report, pictures: &[Picture]) -> Result {
    let machine = &report.machine;
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>convoke: {} layers</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>convoke: the layers of published networks</h1>\n\
         <p>{}</p>\n",
        report.layers.len(),
        machine.headline().map(|line| escape(&line)).join("<br>")
    )?;
    if let Some(partial) = report.partial() {
        writeln!(page, "<p class=\"wrong\">{partial}</p>")?;
    }
    list(page, "Wrong results", report.wrong())?;
    let line = |Failure { name, error }: &Failure| format!("{name}: {error}");
    list(page, "Not run", report.failed.iter().map(line).collect())?;
    list(page, "Not accepted by the algorithm", report.rejected.clone())?;
    page.push_str("<ul>\n");
    for line in machine.limits() {
        writeln!(page, "<li>{}</li>", escape(&line))?;
    }
    page.push_str("</ul>\n");
    writeln!(
        page,
        "<p class=\"note\">Plain NCHW in and out, weights packed outside of the timing, warm caches, the fastest run counts. Every result was compared \
         with a double-precision reference. A layer's limit is the FMA peak, or the read bandwidth of the level that its input, weights and output \
         live in: whichever takes longer.</p>"
    )?;
    page.push_str("<div class=\"pictures\">\n");
    for picture in pictures {
        let caption = escape(&picture.caption);
        writeln!(page, "<figure>\n{}\n<figcaption>{caption}</figcaption>\n</figure>", picture.svg)?;
    }
    page.push_str("</div>\n<h2>By kind of layer (geometric means)</h2>\n<table>\n");
    head(page, &Summary::HEADS, 1)?;
    for summary in &report.summary {
        let [kind, numbers @ ..] = summary.cells();
        write!(page, "<tr><td class=\"left\">{}</td>", escape(&kind))?;
        cells(page, &Summary::HEADS[1..], &numbers)?;
    }
    page.push_str("</table>\n<h2>All layers</h2>\n<table class=\"layers\">\n");
    // The first three columns of the figures are two here: the geometry is below the layer's
    // name, and the kernel is below the algorithm.
    let [_, algorithm, _, heads @ ..] = Figures::HEADS;
    let heads = [&["layer", algorithm][..], &heads, &["error of bound"]].concat();
    head(page, &heads, 2)?;
    for record in &report.layers {
        let [geometry, algorithm, kernel, numbers @ ..] = record.figures.cells().map(|cell| escape(&cell));
        let row = if record.figures.within_bound { "<tr>" } else { "<tr class=\"wrong\">" };
        write!(page, "{row}<td class=\"left\">{}<small>{geometry}</small></td>", escape(&record.name))?;
        write!(page, "<td class=\"left\">{algorithm}<small>{kernel}</small></td>")?;
        let error = format!("{:.3}", record.figures.error_of_bound);
        cells(page, &heads[2..], &[&numbers[..], &[error]].concat())?;
    }
    page.push_str("</table>\n</body>\n</html>\n");
    Ok(())
}

/// A list of what went wrong; nothing if all is well.
fn list(page: &mut String, title: &str, lines: Vec<String>) -> Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(page, "<p class=\"wrong\">{title}:</p>\n<ul>")?;
    for line in lines {
        writeln!(page, "<li>{}</li>", escape(&line))?;
    }
    page.write_str("</ul>\n")
}

/// The heads of a table. The columns up to `numbers` are text.
fn head(page: &mut String, heads: &[&str], numbers: usize) -> Result {
    page.push_str("<tr>");
    for (column, name) in heads.iter().enumerate() {
        let class = if column < numbers { " class=\"left\"" } else { "" };
        write!(page, "<th{class}>{name}</th>")?;
    }
    page.write_str("</tr>\n")
}

/// The numbers at the end of a row. Each has its head, for narrow screens.
fn cells(page: &mut String, heads: &[&str], numbers: &[String]) -> Result {
    for (head, number) in heads.iter().zip(numbers) {
        write!(page, "<td data-head=\"{head}\">{number}</td>")?;
    }
    page.write_str("</tr>\n")
}

/// Text in which HTML finds no markup.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::chart::tests::{layer, report};

    #[test]
    fn what_is_wrong_or_missing_is_listed() {
        let mut wrong = layer("bad", "dense", 5e4, 1e4);
        (wrong.figures.within_bound, wrong.figures.error_of_bound) = (false, 7.5);
        let mut report = report(vec![layer("good", "dense", 5e4, 1e4), wrong]);
        report.comparisons[0].wrong.insert("good".to_owned(), 3.25);
        report.asked = 3;
        report.failed.push(Failure { name: "large".to_owned(), error: "no memory".to_owned() });
        let page = render(&report, &[]);
        for line in [
            "<li>bad: error 0.0e0, 7.5 times its bound</li>",
            "<li>good with portable, threads: 1: error 3.2 times its bound</li>",
            "<li>large: no memory</li>",
            "<tr class=\"wrong\"><td class=\"left\">bad<small>",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
        assert!(!page.contains("Not accepted"), "{page}");
        assert!(page.contains("Partial: 2 of 3 layers"), "{page}");
    }

    #[test]
    fn markup_in_text_is_escaped() {
        assert_eq!(escape("1x2 -> <\"&\">"), "1x2 -&gt; &lt;&quot;&amp;&quot;&gt;");
    }
}
