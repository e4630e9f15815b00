//! Parses Wasm modules and reassembles them wrongly, to test what a daemon refuses.
//!
//! A module is a header and a list of sections (id, length, bytes); this file knows nothing more.

/// The name of the custom section that holds a policy's manifest.
pub const MANIFEST: &str = "tollgate.manifest";

const HEADER: &[u8] = b"\0asm\x01\0\0\0";

/// The module with its manifest replaced; `None` leaves it without one.
///
/// # Panics
/// If `module` isn't a Wasm module, although this repository built it.
pub fn with_manifest(module: &[u8], manifest: Option<&str>) -> Vec<u8> {
    let mut changed = rebuilt(module, |id, body| {
        let is_manifest = id == 0 && {
            let (name_len, name) = read_leb(body);
            &name[..name_len] == MANIFEST.as_bytes()
        };
        (!is_manifest).then(|| body.to_vec())
    });
    if let Some(manifest) = manifest {
        let mut body = name(MANIFEST);
        body.extend_from_slice(manifest.as_bytes());
        section(&mut changed, 0, &body);
    }
    changed
}

/// The module with a memory of `pages` pages (64 KiB each), without a limit of its own.
///
/// # Panics
/// If `module` isn't a Wasm module, although this repository built it.
pub fn with_memory(module: &[u8], pages: usize) -> Vec<u8> {
    const MEMORY_SECTION: u8 = 5;
    rebuilt(module, |id, body| {
        if id != MEMORY_SECTION {
            return Some(body.to_vec());
        }
        let mut memory = vec![1, 0];
        write_leb(&mut memory, pages);
        Some(memory)
    })
}

/// The module with each section's bytes replaced by the result of `change`, or without the section
/// for `None`.
fn rebuilt(module: &[u8], change: impl Fn(u8, &[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut rest = module
        .strip_prefix(HEADER)
        .expect("a Wasm module begins with its header");
    let mut changed = HEADER.to_vec();
    while let Some((&id, after)) = rest.split_first() {
        let (len, after) = read_leb(after);
        let (body, after) = after.split_at(len);
        if let Some(body) = change(id, body) {
            section(&mut changed, id, &body);
        }
        rest = after;
    }
    changed
}

/// A module with only one imported function, without parameters.
pub fn importing(module: &str, function: &str) -> Vec<u8> {
    let mut wasm = HEADER.to_vec();
    section(&mut wasm, 1, &[1, 0x60, 0, 0]);
    section(
        &mut wasm,
        2,
        &[&[1][..], &name(module), &name(function), &[0, 0]].concat(),
    );
    wasm
}

pub(crate) fn section(wasm: &mut Vec<u8>, id: u8, body: &[u8]) {
    wasm.push(id);
    write_leb(wasm, body.len());
    wasm.extend_from_slice(body);
}

pub(crate) fn name(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_leb(&mut bytes, text.len());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

pub(crate) fn write_leb(bytes: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn read_leb(bytes: &[u8]) -> (usize, &[u8]) {
    let len = 1 + bytes.iter().take_while(|&&byte| byte >= 0x80).count();
    let value = bytes[..len]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 7 | usize::from(byte & 0x7f));
    (value, &bytes[len..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_has_as_many_pages_as_it_is_given() {
        let mut module = HEADER.to_vec();
        section(&mut module, 5, &[1, 1, 17, 32]);
        section(&mut module, 11, &[0]);
        let changed = with_memory(&module, 200);
        assert_eq!(changed[8..], [5, 4, 1, 0, 200, 1, 11, 1, 0]);
    }

    #[test]
    fn a_manifest_comes_and_goes() {
        let bare = importing("env", "steal");
        let long = "x".repeat(1_000);
        let with = with_manifest(&bare, Some(&long));
        assert!(with.len() > bare.len() + 1_000 + MANIFEST.len());
        assert_eq!(with_manifest(&with, None), bare);
        assert_eq!(
            with_manifest(&with_manifest(&bare, Some("{}")), Some(&long)),
            with
        );
    }
}
