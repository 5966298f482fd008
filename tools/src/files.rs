//! Files that users name, which may be anything: a device without an end, a folder, or a file of
//! another kind that is far too large.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Bytes of a model, at most: what the format allows.
pub const MODEL: u64 = 2 << 30;
/// Bytes of a tensor, at most.
pub const TENSOR: u64 = 2 << 30;
/// Bytes of a text, at most, such as a list of layers.
pub const TEXT: u64 = 16 << 20;

/// Reads a file of at most `limit` bytes, or what comes from a pipe.
///
/// # Errors
/// The call fails if it is a folder or a device, if it cannot be read, or if it is larger. The
/// error names the file and the limit.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    read_within(path, limit).with_context(|| path.display().to_string())
}

/// The same for a text in UTF-8.
///
/// # Errors
/// Those of [`read`], and bytes that are not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    String::from_utf8(read(path, limit)?).with_context(|| format!("{}: not a text", path.display()))
}

fn read_within(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let kind = fs::metadata(path)?.file_type();
    ensure!(kind.is_file() || is_pipe(kind), "it is a folder or a device, not a file");
    let mut bytes = Vec::new();
    // The length that the system states is not believed, because the files of /proc state 0.
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= limit, "it has more than {limit} bytes, and {limit} are the most that is read");
    Ok(bytes)
}

#[cfg(unix)]
fn is_pipe(kind: fs::FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&kind)
}

#[cfg(not(unix))]
fn is_pipe(_: fs::FileType) -> bool {
    false
}
