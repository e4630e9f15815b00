//! A pseudo-terminal of the kernel, with a program that runs in it like under a shell.
//!
//! A program's output is kept as bytes. A program that draws only changes writes fragments, so a
//! test makes it repaint its screen by changing the terminal's size ([`Terminal::repainted`]).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcgetwinsize, tcsetwinsize};

use crate::process::Process;

/// The time limit for painting a screen.
const PAINTED: Duration = Duration::from_millis(500);

/// A user's terminal.
#[derive(Debug)]
pub struct Terminal {
    master: OwnedFd,
    slave: OwnedFd,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// A terminal with this size.
    ///
    /// # Panics
    /// If the kernel has none left.
    pub fn new(columns: u16, rows: u16) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("there are pseudo-terminals");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is ours");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&*name, flags, Mode::empty()).expect("its other end opens");
        let terminal = Terminal {
            master,
            slave,
            said: Arc::default(),
        };
        terminal.resize(columns, rows);
        let mut reader = File::from(terminal.master());
        let said = Arc::clone(&terminal.said);
        thread::spawn(move || {
            let mut chunk = [0; 4_096];
            while let Ok(len @ 1..) = reader.read(&mut chunk) {
                lock(&said).extend_from_slice(&chunk[..len]);
            }
        });
        terminal
    }

    /// Starts `program` with this as its controlling terminal. It may use colours, which CI
    /// otherwise disables.
    ///
    /// # Panics
    /// If the kernel can't start it.
    pub fn start<I, S>(&self, program: &Path, args: I) -> Process
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        let all = ["--ctty", "env", "--unset=NO_COLOR"].map(OsString::from);
        let all = all.into_iter().chain([program.as_os_str().to_owned()]);
        let stdio = [(); 3].map(|()| Stdio::from(self.slave()));
        let process = Process::start_on(Path::new("setsid"), all.chain(args), stdio);
        process.expect("the program can be started")
    }

    /// Presses keys.
    ///
    /// # Panics
    /// If the terminal accepts none.
    pub fn press(&self, keys: &str) {
        let mut file = File::from(self.master());
        file.write_all(keys.as_bytes())
            .expect("a terminal takes keys");
    }

    /// Everything written to it.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&lock(&self.said)).into_owned()
    }

    /// The output after a change of its size: the whole screen, if the program repaints it.
    ///
    /// # Panics
    /// If the terminal has no size.
    pub fn repainted(&self) -> String {
        let size = tcgetwinsize(&self.slave).expect("a terminal has a size");
        lock(&self.said).clear();
        self.resize(size.ws_col ^ 1, size.ws_row);
        thread::sleep(PAINTED);
        self.said()
    }

    /// The kernel's handling of input and output: cooked, raw.
    ///
    /// # Panics
    /// If the kernel doesn't return it.
    pub fn modes(&self) -> String {
        let modes = tcgetattr(&self.slave).expect("a terminal has modes");
        format!("{modes:?}")
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.slave, size).expect("a terminal can have any size");
    }

    fn master(&self) -> OwnedFd {
        duplicate(&self.master)
    }

    fn slave(&self) -> OwnedFd {
        duplicate(&self.slave)
    }
}

fn duplicate(end: &OwnedFd) -> OwnedFd {
    let again = end.as_fd().try_clone_to_owned();
    again.expect("there is room for a descriptor")
}

fn lock(said: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}
