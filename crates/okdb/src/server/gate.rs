//! The hard gate: several processes may serve a root only if the shared segment really is shared.

use std::path::Path;

use okdb_shm::gate::{GateError, gate_child, prove_shared};
use okdb_store::Store;
use okdb_sys::spawn::Spawn;

/// The hidden command that answers the proof: `okdb __gate RUN_DIR ROOT_ID BOOT_ID TOKEN`.
pub const GATE_COMMAND: &str = "__gate";

/// Proves that a child process sees and advances a word of the store's segment.
///
/// # Errors
/// [`GateError`]: why one process has to serve alone.
pub fn prove(store: &Store) -> Result<(), GateError> {
    let segment = store.segment();
    let identity = segment.identity();
    let run = store.root().join("run");
    prove_shared(segment, |token| {
        Spawn::current_exe("okdb")
            .arg(GATE_COMMAND)
            .arg(&run)
            .arg(hex(&identity.root))
            .arg(hex(&identity.boot))
            .arg(token.to_string())
    })
}

/// The child's side; takes the arguments behind [`GATE_COMMAND`].
///
/// # Errors
/// In words: what failed. The process should then exit with a failure.
pub fn answer_gate(arguments: &[String]) -> Result<(), String> {
    let [run, root, boot, token] = arguments else {
        return Err("the gate takes four arguments".into());
    };
    let identity = okdb_shm::Identity {
        root: unhex(root).ok_or("bad root identity")?,
        boot: unhex(boot).ok_or("bad boot identity")?,
    };
    let token = token.parse().map_err(|_| "bad token")?;
    gate_child(Path::new(run), &identity, token).map_err(|error| error.to_string())
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(text, 16)
        .ok()
        .filter(|_| text.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_survive_the_command_line() {
        for identity in [[0; 16], [255; 16], *b"0123456789abcdef"] {
            assert_eq!(unhex(&hex(&identity)), Some(identity));
        }
        assert_eq!(unhex("12"), None);
        assert_eq!(unhex(&"g".repeat(32)), None);
    }
}
