//! Programs that pages show.

use anyhow::{Context as _, Result};

/// The first block of code in a language that has some text, of a page in Markdown.
pub(super) fn block(page: &str, language: &str, text: &str) -> Result<String> {
    let fence = format!("\n```{language}\n");
    let mut blocks = page.split(&fence).skip(1).filter_map(|rest| rest.split_once("\n```"));
    let block = blocks.find(|(block, _)| block.contains(text)).map(|(block, _)| block);
    Ok(block.with_context(|| format!("a page has no block of {language} with {text:?}"))?.to_owned() + "\n")
}

#[cfg(test)]
mod tests {
    use super::block;

    #[test]
    fn blocks_are_found_by_language_and_text() {
        let page = "text\n```c\none\n```\n\n```sh\ntwo\n```\n```c\nthree\nfour\n```\n";
        assert_eq!(block(page, "c", "four").unwrap(), "three\nfour\n");
        assert_eq!(block(page, "sh", "").unwrap(), "two\n");
        assert!(block(page, "c", "two").is_err());
    }
}
