//! The C library as users install it: found by pkg-config, built against by gcc and clang as C11
//! and by g++ as C++17, run plain, under the address sanitizer and under valgrind.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::programs;
use crate::testbed::{health_proto, proto_file, run, stubs, succeed};

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// A way to build and run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By gcc, with the shared library.
    Shared,
    /// By clang, with the static library.
    Static,
    /// As C++17 by g++.
    Cpp,
    /// With the sanitizers for addresses and for undefined behaviour.
    Sanitized,
    /// Like [`Shared`](Way::Shared), under valgrind.
    Valgrind,
}

impl Way {
    fn compiler(self) -> &'static str {
        match self {
            Way::Static => "clang",
            Way::Cpp => "g++",
            Way::Shared | Way::Sanitized | Way::Valgrind => "gcc",
        }
    }
}

/// The installed library, and stubs of the suites' services.
#[derive(Debug)]
pub struct Kit {
    place: PathBuf,
}

/// The library's sources.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../client-libs/c")
}

impl Kit {
    /// Installs the library and makes the stubs in a directory, which is emptied first.
    ///
    /// # Panics
    /// If the library isn't built, or something fails.
    pub fn install(place: &Path) -> Kit {
        let library = programs().join("libtollgate.so");
        let shown = library.display();
        assert!(
            library.exists(),
            "{shown} is not built; run `cargo build --workspace` first"
        );
        let _nothing_there = std::fs::remove_dir_all(place);
        let assignment = |name: &str, path: &Path| format!("{name}={}", path.display());
        succeed(
            Command::new("make")
                .args(["--silent", "-C"])
                .arg(sources())
                .arg("install")
                .arg(assignment("PREFIX", &place.join("prefix")))
                .arg(assignment("BUILD", &programs())),
        );
        let protos = ["everything.proto", "hotel.proto", "interop.proto"].map(proto_file);
        stubs("c", &protos, &place.join("stubs"));
        stubs("c", &[health_proto()], &place.join("stubs"));
        Kit {
            place: place.to_owned(),
        }
    }

    fn pkg_config(&self, flags: &[&str]) -> Vec<String> {
        let said = succeed(
            Command::new("pkg-config")
                .args(flags)
                .arg("tollgate")
                .env("PKG_CONFIG_PATH", self.lib().join("pkgconfig")),
        );
        said.split_whitespace().map(str::to_owned).collect()
    }

    /// The directory of its libraries.
    pub fn lib(&self) -> PathBuf {
        self.place.join("prefix/lib")
    }

    /// Builds a program from one source.
    ///
    /// # Panics
    /// If that fails.
    pub fn build(&self, way: Way, source: &Path) -> PathBuf {
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        let program = self.place.join(format!("{name}.{way:?}"));
        let mut build = Command::new(way.compiler());
        build.args(WARNINGS).args(["-g", "-O2", "-I"]);
        build.arg(self.place.join("stubs"));
        build.args(self.pkg_config(&["--cflags"]));
        match way {
            Way::Cpp => build.args(["-std=c++17", "-x", "c++"]),
            _ => build.arg("-std=c11"),
        };
        if way == Way::Sanitized {
            build.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        }
        build.arg(source).args(["-x", "none", "-pthread"]);
        match way {
            Way::Static | Way::Sanitized => {
                build.arg(self.lib().join("libtollgate.a"));
                let rest = self.pkg_config(&["--libs", "--static"]);
                build.args(rest.iter().filter(|flag| *flag != "-ltollgate"));
            }
            Way::Shared | Way::Cpp | Way::Valgrind => {
                build.args(self.pkg_config(&["--libs"]));
                build.arg(format!("-Wl,-rpath,{}", self.lib().display()));
            }
        }
        succeed(build.arg("-o").arg(&program));
        program
    }

    /// The command line that runs the program with its arguments.
    pub fn command(&self, way: Way, program: &Path, args: &[&str]) -> (PathBuf, Vec<String>) {
        let args = args.iter().map(|&arg| arg.to_owned());
        if way != Way::Valgrind {
            return (program.to_owned(), args.collect());
        }
        let suppressions = self.place.join("prefix/share/tollgate/valgrind.supp");
        let checks = [
            "--quiet".to_owned(),
            "--leak-check=full".to_owned(),
            "--error-exitcode=1".to_owned(),
            format!("--suppressions={}", suppressions.display()),
            program.display().to_string(),
        ];
        (
            PathBuf::from("valgrind"),
            checks.into_iter().chain(args).collect(),
        )
    }

    /// Builds an example and runs it to its end; returns its output.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn example(&self, way: Way, source: &str, args: &[&str]) -> String {
        let program = self.build(way, &sources().join(source));
        let (program, args) = self.command(way, &program, args);
        let outcome = run(&program, args, b"");
        assert_eq!(outcome.code, 0, "{source}, {way:?}: {outcome}");
        outcome.out
    }
}
