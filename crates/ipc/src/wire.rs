//! Messages as packets and packets as messages. The one module that knows the encoding (bincode).
//!
//! The socket keeps packets whole and in order. The first one each way is a greeting: `okdb-ipc`, the
//! protocol version (u32, little-endian) and the side that speaks (1 primary, 2 worker). Every other one is
//! a byte that says whether the message goes on in the next packet (1) or ends here (0), and a piece of the
//! message.

use std::marker::PhantomData;

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the messages and of their encoding.
pub const PROTOCOL: u32 = 2;

/// Size of the largest packet. Sockets take more than that at a time, whatever the host's settings.
pub const PACKET_BYTES_MAX: usize = 64 * 1024;

/// Size of the largest message: a status snapshot of many slots, with the last words of their dead.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

const GREETING: &[u8; 8] = b"okdb-ipc";

const GREETING_BYTES: usize = GREETING.len() + size_of::<u32>() + 1;

const LAST: u8 = 0;
const MORE: u8 = 1;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The supervisor.
    Primary,
    /// One of its children.
    Worker,
}

impl Side {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Primary => 1,
            Self::Worker => 2,
        }
    }
}

/// Why bytes are not a message, or a message does not become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message is larger than [`MESSAGE_BYTES_MAX`].
    #[error("a message of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLarge,
    /// The first packet is no greeting, or one from the wrong side.
    #[error("the other side does not greet as it should")]
    Greeting,
    /// The other side speaks another version of the protocol.
    #[error("the other side speaks protocol {0}, this one {PROTOCOL}")]
    Version(u32),
    /// A packet or message that this protocol does not have.
    #[error("a malformed message")]
    Malformed,
}

fn config() -> Configuration<LittleEndian, Varint, Limit<MESSAGE_BYTES_MAX>> {
    bincode::config::standard().with_limit::<MESSAGE_BYTES_MAX>()
}

/// The first packet from `side`.
#[must_use]
pub fn greeting(side: Side) -> Vec<u8> {
    let mut packet = Vec::with_capacity(GREETING_BYTES);
    packet.extend_from_slice(GREETING);
    packet.extend_from_slice(&PROTOCOL.to_le_bytes());
    packet.push(side.to_byte());
    packet
}

/// The packets of one message, in order.
///
/// # Errors
/// [`WireError::TooLarge`].
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<Vec<u8>>, WireError> {
    let bytes =
        bincode::serde::encode_to_vec(message, config()).map_err(|_| WireError::Malformed)?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(WireError::TooLarge);
    }
    let mut pieces = bytes.chunks(PACKET_BYTES_MAX - 1).peekable();
    let mut packets = Vec::new();
    while let Some(piece) = pieces.next() {
        let mut packet = Vec::with_capacity(piece.len() + 1);
        packet.push(if pieces.peek().is_some() { MORE } else { LAST });
        packet.extend_from_slice(piece);
        packets.push(packet);
    }
    Ok(packets)
}

/// Turns the packets of one direction back into messages. After an error it is of no more use, and neither
/// is the connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Decoder<M> {
    from: Side,
    greeted: bool,
    partial: Vec<u8>,
    #[serde(skip)]
    message: PhantomData<fn() -> M>,
}

impl<M: DeserializeOwned> Decoder<M> {
    /// For what `from` sends.
    #[must_use]
    pub fn new(from: Side) -> Self {
        Self {
            from,
            greeted: false,
            partial: Vec::new(),
            message: PhantomData,
        }
    }

    /// Takes one packet; returns the message that it completes.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn push(&mut self, packet: &[u8]) -> Result<Option<M>, WireError> {
        if !self.greeted {
            check_greeting(packet, self.from)?;
            self.greeted = true;
            return Ok(None);
        }
        let (&last, piece) = packet.split_first().ok_or(WireError::Malformed)?;
        if packet.len() > PACKET_BYTES_MAX {
            return Err(WireError::Malformed);
        }
        if self.partial.len().saturating_add(piece.len()) > MESSAGE_BYTES_MAX {
            return Err(WireError::TooLarge);
        }
        match last {
            // An empty piece would let a message go on for ever without growing.
            MORE if !piece.is_empty() => {
                self.partial.extend_from_slice(piece);
                Ok(None)
            }
            LAST if self.partial.is_empty() => decode(piece).map(Some),
            LAST => {
                self.partial.extend_from_slice(piece);
                // Not kept for the next message: large ones are rare.
                decode(&std::mem::take(&mut self.partial)).map(Some)
            }
            _ => Err(WireError::Malformed),
        }
    }
}

fn check_greeting(packet: &[u8], from: Side) -> Result<(), WireError> {
    let rest = packet.strip_prefix(GREETING).ok_or(WireError::Greeting)?;
    let (version, side) = rest.split_first_chunk().ok_or(WireError::Greeting)?;
    let version = u32::from_le_bytes(*version);
    if version != PROTOCOL {
        return Err(WireError::Version(version));
    }
    if side != [from.to_byte()] {
        return Err(WireError::Greeting);
    }
    Ok(())
}

fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, WireError> {
    let (message, used) =
        bincode::serde::decode_from_slice(bytes, config()).map_err(|_| WireError::Malformed)?;
    if used == bytes.len() {
        Ok(message)
    } else {
        Err(WireError::Malformed)
    }
}

#[cfg(test)]
#[path = "wire/tests.rs"]
mod tests;
