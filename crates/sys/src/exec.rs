//! Replacing the program of this process, under the same pid: `execve`, with care for descriptors and signals.
//!
//! **On the main thread only, where it has children.** A child gets its death signal when the *thread* that forked it ends,
//! and all threads but the calling one end here.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::unistd::execve;

use crate::fd::set_cloexec;

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
    /// [`crate::signals::unblock_all`]: what arrives in between waits, instead of meeting the default action.
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

        let mut before = SigSet::empty();
        pthread_sigmask(
            SigmaskHow::SIG_SETMASK,
            Some(&SigSet::all()),
            Some(&mut before),
        )?;
        // Whatever was opened carelessly stops here, too.
        let opened = crate::spawn::seal_descriptors()
            .and_then(|()| self.kept.iter().try_for_each(|fd| set_cloexec(fd, false)));
        let error = match opened {
            Ok(()) => match execve(&program, &arguments, &variables) {
                Ok(never) => match never {},
                Err(errno) => errno.into(),
            },
            Err(error) => error,
        };
        for fd in &self.kept {
            // It was close-on-exec a moment ago, and a child may be started at any time.
            set_cloexec(fd, true)?;
        }
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
        Err(error)
    }
}

fn text(text: OsString) -> io::Result<CString> {
    CString::new(text.into_vec())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// A file in memory, for what is too much for a variable: its content survives [`Exec::run`] with its descriptor.
///
/// # Errors
/// What `memfd_create` or writing reports.
pub fn memory_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::io::Write;
    let mut file = std::fs::File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC)?);
    file.write_all(content)?;
    Ok(file.into())
}

/// What is in a file that [`memory_file`] made, in whichever program.
///
/// # Errors
/// What reading reports.
pub fn read_memory_file(file: OwnedFd) -> io::Result<Vec<u8>> {
    use std::io::{Read, Seek};
    let mut file = std::fs::File::from(file);
    let mut content = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    use std::os::fd::AsFd;

    #[test]
    fn a_program_that_is_none_leaves_everything_as_it_was() {
        let kept = memory_file("kept", b"content").unwrap();
        for program in ["/nonexistent/okdb", "/dev/null"] {
            let mut before = SigSet::empty();
            pthread_sigmask(SigmaskHow::SIG_SETMASK, None, Some(&mut before)).unwrap();
            let error = Exec::new(program).keep(kept.as_fd()).run();
            assert!(error.raw_os_error().is_some(), "{error}");
            let flags = fcntl(kept.as_fd(), FcntlArg::F_GETFD).unwrap();
            assert!(FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC));
            let mut after = SigSet::empty();
            pthread_sigmask(SigmaskHow::SIG_SETMASK, None, Some(&mut after)).unwrap();
            assert_eq!(after, before);
        }
        assert_eq!(read_memory_file(kept).unwrap(), b"content");
        let error = Exec::new("/bin/true").args(["a\0b"]).run();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
