//! Replacing the program of this process, under the same pid: `execve`, with care for descriptors and signals.
//!
//! **On the main thread only, where it has children.** A child gets its death signal when the *thread* that forked it ends,
//! and all threads but the calling one end here.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::execve;

use crate::fd::{inheritable, make_inheritable, set_cloexec};
use crate::signals::Blocked;
use crate::spawn::seal_descriptors;

/// A program that this process shall become. Standard input, output and error stay what they are.
#[derive(Debug)]
pub struct Exec<'fd> {
    program: PathBuf,
    name: OsString,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    kept: Vec<BorrowedFd<'fd>>,
}

impl<'fd> Exec<'fd> {
    /// The program at a path.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let program = program.into();
        Self {
            name: program.clone().into(),
            program,
            arguments: Vec::new(),
            variables: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// What it sees as its own name; its path if nothing is said.
    #[must_use]
    pub fn arg0(mut self, name: impl AsRef<OsStr>) -> Self {
        name.as_ref().clone_into(&mut self.name);
        self
    }

    /// Appends arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        let arguments = arguments.into_iter();
        self.arguments
            .extend(arguments.map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets a variable, beside all that this process has.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.variables
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Leaves `fd` open, under the number that it has.
    #[must_use]
    pub fn keep(mut self, fd: BorrowedFd<'fd>) -> Self {
        self.kept.push(fd);
        self
    }

    /// Becomes the program. Comes back only with the reason why it did not, and with flags and signals as they were.
    ///
    /// From the call on every signal is blocked, and stays so in the new program until that calls
    /// [`crate::signals::unblock_all`]: what arrives in between waits, instead of meeting the default action. That holds
    /// for this thread. Others must be deaf as well (see [`Blocked`]), or one of them may take a signal in the very last
    /// moment, and what its handler notes is lost with this program.
    ///
    /// While it is tried, a child that another thread starts by other means than [`crate::spawn::Spawn`] inherits what
    /// is kept.
    #[must_use]
    pub fn run(self) -> io::Error {
        match self.try_run() {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn try_run(self) -> io::Result<Infallible> {
        let program = text(self.program.into_os_string())?;
        let arguments = std::iter::once(self.name)
            .chain(self.arguments)
            .map(text)
            .collect::<io::Result<Vec<_>>>()?;
        let own = std::env::vars_os()
            .filter(|(name, _)| self.variables.iter().all(|(set, _)| set != name));
        let variables = own
            .chain(self.variables.iter().cloned())
            .map(|(mut name, value)| {
                name.push("=");
                name.push(value);
                text(name)
            })
            .collect::<io::Result<Vec<_>>>()?;

        let _deaf = Blocked::all()?;
        let _flags = Flags {
            inheritable: inheritable()?,
            kept: &self.kept,
        };
        // Whatever was opened carelessly stops here, too.
        seal_descriptors()?;
        for fd in &self.kept {
            set_cloexec(fd, false)?;
        }
        let Err(errno) = execve(&program, &arguments, &variables);
        Err(errno.into())
    }
}

/// Flags of descriptors as they were, set again on drop.
struct Flags<'a> {
    /// Those that crossed an exec before.
    inheritable: Vec<RawFd>,
    kept: &'a [BorrowedFd<'a>],
}

impl Drop for Flags<'_> {
    fn drop(&mut self) {
        for fd in self.kept {
            // An open descriptor takes its flags.
            let _ = set_cloexec(fd, true);
        }
        for number in &self.inheritable {
            make_inheritable(*number);
        }
    }
}

fn text(text: OsString) -> io::Result<CString> {
    CString::new(text.into_vec())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// What nobody may do any more to a file that [`memory_file`] made.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_WRITE)
    .union(SealFlag::F_SEAL_SEAL);

/// A file in memory, for what is too much for a variable: its content survives [`Exec::run`] with its descriptor, and
/// nobody can change it any more. `name` shows in `/proc`, and need not be unique.
///
/// # Errors
/// What `memfd_create`, writing or sealing report.
pub fn memory_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(name, flags)?);
    file.write_all(content)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
    Ok(file.into())
}

/// What is in a file that [`memory_file`] made, in whichever program.
///
/// # Errors
/// `InvalidData` for a file that it did not make; else what reading reports.
pub fn read_memory_file(file: OwnedFd) -> io::Result<Vec<u8>> {
    let mut file = File::from(file);
    // Files of other kinds answer EINVAL.
    let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
    if !SealFlag::from_bits_retain(seals).contains(SEALS) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a sealed file in memory",
        ));
    }
    file.rewind()?;
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;
    use nix::fcntl::FdFlag;
    use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
    use std::os::fd::{AsFd, AsRawFd};

    fn mask() -> SigSet {
        let mut mask = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, None, Some(&mut mask)).unwrap();
        mask
    }

    fn crosses(fd: impl AsFd) -> bool {
        let flags = fcntl(fd.as_fd(), FcntlArg::F_GETFD).unwrap();
        !FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC)
    }

    #[test]
    fn a_program_that_is_none_leaves_everything_as_it_was() {
        let [kept, open, open_and_kept] =
            ["kept", "open", "both"].map(|name| memory_file(name, name.as_bytes()).unwrap());
        set_cloexec(&open, false).unwrap();
        set_cloexec(&open_and_kept, false).unwrap();
        assert!(inheritable().unwrap().contains(&open.as_raw_fd()));
        let before = mask();
        for program in ["/nonexistent/okdb", "/dev/null"] {
            let error = Exec::new(program)
                .keep(kept.as_fd())
                .keep(open_and_kept.as_fd())
                .run();
            assert!(error.raw_os_error().is_some(), "{error}");
            let crossing = [&kept, &open, &open_and_kept].map(crosses);
            assert_eq!(crossing, [false, true, true]);
            assert_eq!(mask(), before);
        }
        let error = Exec::new("/bin/true").args(["a\0b"]).run();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(mask(), before);
    }

    #[test]
    fn a_file_in_memory_is_read_as_it_was_written_and_changed_by_nobody() {
        let content = vec![7; 100_000];
        let file = memory_file("test", &content).unwrap();
        let error = File::from(file.try_clone().unwrap())
            .write_all(b"x")
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let again = file.try_clone().unwrap();
        assert_eq!(read_memory_file(file).unwrap(), content);
        assert_eq!(read_memory_file(again).unwrap(), content);
        assert_eq!(
            read_memory_file(memory_file("empty", b"").unwrap()).unwrap(),
            b""
        );
        let stranger = OwnedFd::from(File::open("/dev/null").unwrap());
        let error = read_memory_file(stranger).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
