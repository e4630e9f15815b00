//! The log's file: appending a line, and reading the end.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::record::{Head, parse};
use crate::disk;
use crate::limits::MAX_LINE_BYTES;

pub(super) fn append(path: &Path, line: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    disk::has_room()?;
    let mut file = File::options()
        .append(true)
        .read(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    let len = file.seek(SeekFrom::End(0))?;
    let mut last = [b'\n'];
    if len > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    // After a cut line, the new record starts on its own line.
    let end = if last == [b'\n'] { "" } else { "\n" };
    let written = file.write_all(format!("{end}{line}\n").as_bytes());
    if written.is_err() {
        // No partial line shall remain; if that fails as well, the next start finds it.
        let _left_for_the_next_start = file.set_len(len);
    }
    written?;
    file.sync_data()?;
    match path.parent() {
        Some(state) if len == 0 => disk::sync_directory(state),
        _ => Ok(()),
    }
}

/// The last complete line (without its line end), the offset after it, and the file's length.
pub(super) fn last_line(path: &Path) -> std::io::Result<(Option<Vec<u8>>, u64, u64)> {
    let (tail, len) = tail(path, 2 * MAX_LINE_BYTES as u64)?;
    let Some(end) = tail.iter().rposition(|&b| b == b'\n') else {
        return Ok((None, len - tail.len() as u64, len));
    };
    let begin = tail[..end].iter().rposition(|&b| b == b'\n');
    let line = tail[begin.map_or(0, |begin| begin + 1)..end].to_vec();
    Ok((Some(line), len - (tail.len() - end - 1) as u64, len))
}

pub(super) fn last_lines(path: &Path, count: usize) -> std::io::Result<Vec<String>> {
    let (mut bytes, len) = tail(path, 1 << 20)?;
    if len > bytes.len() as u64 {
        // The first line that was read is incomplete.
        let first = bytes
            .iter()
            .position(|&b| b == b'\n')
            .map_or(bytes.len(), |at| at + 1);
        bytes.drain(..first);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(count);
    Ok(lines[skipped..]
        .iter()
        .map(|line| (*line).to_owned())
        .collect())
}

/// The last bytes of a file, at most `most`, and its length; empty if the file doesn't exist.
pub(super) fn tail(path: &Path, most: u64) -> std::io::Result<(Vec<u8>, u64)> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error),
    };
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok((bytes, len))
}

/// Whether the file ends with a block of complete lines.
pub(super) fn ends_with(path: &Path, block: &str) -> std::io::Result<bool> {
    let (bytes, _) = tail(path, block.len() as u64 + 1)?;
    Ok(bytes.strip_suffix(b"\n") == Some(block.as_bytes()))
}

/// The offset at which the file ends with `before`, if the rest may be the remains of a block of
/// lines after a power cut: some of its bytes, and zeros.
pub(super) fn torn_at(path: &Path, before: Head, block: &str) -> std::io::Result<Option<u64>> {
    let most = block.len() + 2 * MAX_LINE_BYTES;
    let (bytes, len) = tail(path, most as u64)?;
    let first = len - bytes.len() as u64;
    let ends = bytes.iter().enumerate().filter(|&(_, &b)| b == b'\n');
    let mut starts: Vec<usize> = ends.map(|(at, _)| at + 1).collect();
    if first == 0 {
        starts.insert(0, 0);
    }
    // The lines' own ends may be present.
    let ends = block.lines().count();
    for (k, &start) in starts.iter().enumerate().rev().take(ends + 1) {
        let written = block.bytes().chain([b'\n']);
        let rest = &bytes[start..];
        let is_left = rest.len() <= block.len() + 1
            && rest.iter().zip(written).all(|(&b, was)| b == was || b == 0);
        let ended = match k.checked_sub(1) {
            Some(previous) => parse(&bytes[starts[previous]..start - 1]).map(|(_, here)| here),
            None if start == 0 => Ok(Head::default()),
            None => continue,
        };
        if is_left && ended == Ok(before) {
            return Ok(Some(first + start as u64));
        }
    }
    Ok(None)
}
