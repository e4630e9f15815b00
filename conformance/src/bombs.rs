//! Hostile modules from seeds, which keep a compiler busy or fill its memory.
//!
//! Each is a whole policy (manifest, exports, memory) with one excess; [`largest`] is just within
//! the limits of the daemon's scan.

use crate::hostile::Seeded;
use crate::wasm::{name, section, write_leb};

/// A hostile module.
#[derive(Debug, Clone)]
pub struct Bomb {
    /// The kind of excess.
    pub kind: &'static str,
    /// The module.
    pub wasm: Vec<u8>,
}

type Fill = fn(&mut Shell, &mut Seeded);

const KINDS: [(&str, Fill); 12] = [
    ("nested blocks", |shell, seeded| {
        let depth = 513 + seeded.below(20_000) as usize;
        shell.function(&[], &[[2, 0x40].repeat(depth), vec![0x0b; depth]].concat());
    }),
    ("one giant function", |shell, seeded| {
        let times = 25_000 + seeded.below(300_000) as usize;
        shell.function(&[], &[0x41, 0, 0x1a].repeat(times));
    }),
    ("a million locals", |shell, seeded| {
        shell.function(&[1_025 + seeded.below(1_000_000) as usize], &[]);
    }),
    ("a huge table", |shell, seeded| {
        let elements = 16_385 + seeded.below(9_000_000) as usize;
        shell.table = Some(elements);
    }),
    ("a giant br_table", |shell, seeded| {
        let targets = 1_025 + seeded.below(60_000) as usize;
        let mut code = vec![2, 0x40, 0x41, 0, 0x0e];
        write_leb(&mut code, targets);
        code.extend(vec![0; targets + 1]);
        code.push(0x0b);
        shell.function(&[], &code);
    }),
    ("many functions", |shell, seeded| {
        for _ in 0..10_001 + seeded.below(80_000) {
            shell.function(&[], &[]);
        }
    }),
    ("many types", |shell, seeded| {
        shell.types += 4_097 + seeded.below(200_000) as usize;
    }),
    ("many exports", |shell, seeded| {
        shell.exports += 257 + seeded.below(50_000) as usize;
    }),
    ("many globals", |shell, seeded| {
        shell.globals += 1_025 + seeded.below(200_000) as usize;
    }),
    ("a manifest without end", |shell, seeded| {
        let depth = 10_000 + seeded.below(500_000) as usize;
        shell.manifest = "[".repeat(depth);
    }),
    ("many blocks times locals", |shell, seeded| {
        let blocks = 400 + seeded.below(10_000) as usize;
        shell.function(&[1_000], &[2, 0x40, 0x0b].repeat(blocks));
    }),
    ("much of everything", |shell, seeded| {
        for _ in 0..18 + seeded.below(2) {
            shell.function(&[], &[1; 60_000]);
        }
    }),
];

/// The number of modules of each kind in [`bombs`].
pub const OF_EACH_KIND: usize = 8;

/// Modules that must be refused: some of each kind, also corrupted at a random place for half of
/// the seeds.
pub fn bombs() -> Vec<Bomb> {
    let mut made = Vec::new();
    for (kind, fill) in KINDS {
        for seed in 0..OF_EACH_KIND as u64 {
            let mut seeded = Seeded(seed << 32 | made.len() as u64);
            let mut shell = Shell::default();
            fill(&mut shell, &mut seeded);
            let mut wasm = shell.wasm();
            if seed % 4 == 3 {
                wasm.truncate(8 + seeded.below(wasm.len() as u64 - 8) as usize);
            }
            made.push(Bomb { kind, wasm });
        }
    }
    made
}

/// About the most compiler work that the scan permits.
pub fn largest(seed: u64) -> Bomb {
    let mut shell = Shell::default();
    // if (local.get 0) { local.set 1.. }: each block makes the compiler merge every local that is
    // set.
    for function in 0..20u8 {
        let mut code = Vec::new();
        for block in 0..290usize {
            code.extend([0x20, 0, 0x04, 0x40, 0x41, function, 0x21]);
            write_leb(&mut code, 1 + (block * 7 + seed as usize) % 1_000);
            code.extend([0x41, block as u8 & 0x3f, 0x21]);
            write_leb(&mut code, 1 + (block * 13 + 5) % 1_000);
            code.push(0x0b);
        }
        for local in 0..1_000 {
            code.push(0x20);
            write_leb(&mut code, local);
            code.extend([0x24, 0]);
        }
        shell.function(&[1_001], &code);
    }
    shell.globals = 1;
    Bomb {
        kind: "as large as the scan lets pass",
        wasm: shell.wasm(),
    }
}

/// A policy that allows everything, with room for additions.
struct Shell {
    /// Types beyond the two that the policy needs; functions without parameters have type 1.
    types: usize,
    functions: Vec<Vec<u8>>,
    table: Option<usize>,
    globals: usize,
    exports: usize,
    manifest: String,
}

impl Default for Shell {
    fn default() -> Shell {
        let manifest = r#"{"abi":1,"name":"bomb","hooks":["request"],"methods":[{"method":"hotel.Echo/Echo"}]}"#;
        Shell {
            types: 0,
            functions: Vec::new(),
            table: None,
            globals: 0,
            exports: 0,
            manifest: manifest.to_owned(),
        }
    }
}

impl Shell {
    /// A function of type 1 with these groups of `i32` locals.
    fn function(&mut self, locals: &[usize], code: &[u8]) {
        let mut body = Vec::new();
        write_leb(&mut body, locals.len());
        for &count in locals {
            write_leb(&mut body, count);
            body.push(0x7f);
        }
        body.extend_from_slice(code);
        body.push(0x0b);
        self.functions.push(body);
    }

    fn wasm(&self) -> Vec<u8> {
        let hooks = ["tollgate_buffer", "tollgate_configure", "tollgate_request"];
        let mut wasm = b"\0asm\x01\0\0\0".to_vec();
        let call = vec![0x60, 1, 0x7f, 1, 0x7f];
        let types = [call]
            .into_iter()
            .chain(vec![vec![0x60, 0, 0]; 1 + self.types]);
        list(&mut wasm, 1, types);
        let types = [0, 0, 0, 1]
            .into_iter()
            .chain(self.functions.iter().map(|_| 1));
        list(&mut wasm, 3, types.map(|ty| vec![ty]));
        if let Some(elements) = self.table {
            let mut table = vec![0x70, 0];
            write_leb(&mut table, elements);
            list(&mut wasm, 4, [table]);
        }
        list(&mut wasm, 5, [vec![0, 1]]);
        if self.globals > 0 {
            list(
                &mut wasm,
                6,
                vec![vec![0x7f, 1, 0x41, 0, 0x0b]; self.globals],
            );
        }
        let export = |text: &str, kind: u8, index: u8| [name(text), vec![kind, index]].concat();
        let exports = (0..3u8).zip(hooks).map(|(i, hook)| export(hook, 0, i));
        let exports = exports
            .chain([export("tollgate_abi_v1", 0, 3), export("memory", 2, 0)])
            .chain((0..self.exports).map(|i| export(&format!("e{i}"), 0, 0)));
        list(&mut wasm, 7, exports);
        let returns = |code: &[u8]| [&[0][..], code, &[0x0b]].concat();
        let shell = [
            returns(&[0x41, 0x80, 0x08]),
            returns(&[0x41, 0]),
            returns(&[0x41, 0]),
            returns(&[]),
        ];
        let bodies = shell.into_iter().chain(self.functions.iter().cloned());
        let sized = bodies.map(|body| {
            let mut sized = Vec::new();
            write_leb(&mut sized, body.len());
            sized.extend_from_slice(&body);
            sized
        });
        list(&mut wasm, 10, sized);
        let manifest = [&name("tollgate.manifest")[..], self.manifest.as_bytes()].concat();
        section(&mut wasm, 0, &manifest);
        wasm
    }
}

/// A section with a list.
fn list(wasm: &mut Vec<u8>, id: u8, items: impl IntoIterator<Item = Vec<u8>>) {
    let items: Vec<_> = items.into_iter().collect();
    let mut body = Vec::new();
    write_leb(&mut body, items.len());
    items.iter().for_each(|item| body.extend_from_slice(item));
    section(wasm, id, &body);
}
