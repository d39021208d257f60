//! The exit codes of the `okdb` command: one table, which the docs and the systemd unit repeat.
//!
//! Nothing here ends a process; `bin/` turns the code that the driver returns into one.

use std::process;

/// How a server process ended. The numbers are a contract with service managers and scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// Stopped because it was asked to, with everything closed.
    Clean = 0,
    /// Something failed while running: an I/O error, a worker that could not be killed, a lost parent.
    RuntimeFailure = 1,
    /// The command line or the configuration is wrong. A restart does not cure it.
    Usage = 2,
    /// Another server holds the root. A restart does not cure it.
    RootLocked = 3,
    /// A listen address is taken. A restart does not cure it.
    AddressInUse = 4,
    /// Every slot was given up by the crash-loop guard; only a restart of the whole server can help.
    AllSlotsDead = 5,
}

impl ExitCode {
    /// All codes, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Clean,
        Self::RuntimeFailure,
        Self::Usage,
        Self::RootLocked,
        Self::AddressInUse,
        Self::AllSlotsDead,
    ];

    /// The number that the process exits with.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// What the code means, in the words of the docs.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::RuntimeFailure => "runtime failure",
            Self::Usage => "usage or configuration",
            Self::RootLocked => "root locked",
            Self::AddressInUse => "address in use",
            Self::AllSlotsDead => "all slots dead",
        }
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.number())
    }
}

#[cfg(test)]
mod tests {
    use super::ExitCode;

    #[test]
    fn numbers_are_the_documented_ones() {
        let numbers: Vec<u8> = ExitCode::ALL.iter().map(|code| code.number()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn the_docs_list_every_code() {
        let page = include_str!("../../../docs/cluster.md");
        for code in ExitCode::ALL {
            let row = format!("| {} | {} |", code.number(), code.meaning());
            assert!(page.contains(&row), "docs/cluster.md lacks the row {row}");
        }
    }
}
