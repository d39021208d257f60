//! The rules for keys and names, in one place.

use crate::Error;

/// The longest key, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 400;
const ENV_NAME_BYTES_MAX: usize = 64;
const TYPE_NAME_BYTES_MAX: usize = 128;
/// Path segments of `/api` that are routes and therefore cannot name an environment.
const SYSTEM_WORDS: [&str; 9] = [
    "info",
    "envs",
    "auth",
    "audit",
    "cluster",
    "processes",
    "processing",
    "processors",
    "events",
];

/// Checks a record key: 1 to [`KEY_BYTES_MAX`] bytes, no control characters below U+0020.
///
/// # Errors
/// [`Error::InvalidKey`] that tells what is wrong.
pub fn check_key(key: &str) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::InvalidKey("it is empty".into()));
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::InvalidKey(format!(
            "it has {} bytes, at most {KEY_BYTES_MAX} are allowed",
            key.len()
        )));
    }
    if let Some(at) = key.bytes().position(|byte| byte < 0x20) {
        return Err(Error::InvalidKey(format!(
            "byte {at} is a control character"
        )));
    }
    Ok(())
}

/// Checks a type name: `[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}`, with a `~` in front for internal ones.
///
/// # Errors
/// [`Error::InvalidName`] that tells what is wrong.
pub fn check_type_name(name: &str) -> Result<(), Error> {
    check_name(name, "type", TYPE_NAME_BYTES_MAX, true)
}

/// Checks an environment name: `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}` and no system word, with a `~` in front for internal ones.
///
/// # Errors
/// [`Error::InvalidName`] that tells what is wrong.
pub fn check_env_name(name: &str) -> Result<(), Error> {
    check_name(name, "environment", ENV_NAME_BYTES_MAX, false)?;
    if SYSTEM_WORDS.contains(&name) || name == "openapi.json" {
        return Err(Error::InvalidName(format!(
            "environment name {name:?} is a word of the API"
        )));
    }
    Ok(())
}

fn check_name(name: &str, what: &str, bytes_max: usize, underscore: bool) -> Result<(), Error> {
    let body = name.strip_prefix('~').unwrap_or(name);
    let first_fits = |byte: u8| byte.is_ascii_alphanumeric() || (underscore && byte == b'_');
    let rest_fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let fits = body.len() <= bytes_max
        && body.bytes().next().is_some_and(first_fits)
        && body.bytes().all(rest_fits);
    if fits {
        return Ok(());
    }
    let shown: String = name.chars().take(bytes_max).collect();
    let first = if underscore {
        "a letter, a digit or _"
    } else {
        "a letter or a digit"
    };
    Err(Error::InvalidName(format!(
        "{what} name {shown:?}: it needs 1 to {bytes_max} of A-Z a-z 0-9 _ . - and must begin with {first}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_bounds() {
        assert!(check_key("a").is_ok());
        assert!(check_key(&"ü".repeat(200)).is_ok());
        assert!(check_key("a/b ~\u{7f}").is_ok());
        for bad in [String::new(), "a".repeat(401), "a\nb".into(), "\0".into()] {
            assert!(
                matches!(check_key(&bad), Err(Error::InvalidKey(_))),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn names_keep_their_alphabet() {
        for good in ["users", "_x", "~sub", "A.b-c_9", "0"] {
            assert!(check_type_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "~",
            "-a",
            ".a",
            "a/b",
            "a b",
            "ä",
            "~~a",
            &"a".repeat(129),
        ] {
            assert!(
                matches!(check_type_name(bad), Err(Error::InvalidName(_))),
                "{bad}"
            );
        }
        assert!(check_env_name("default").is_ok());
        assert!(check_env_name("_x").is_err());
        for word in SYSTEM_WORDS {
            assert!(check_env_name(word).is_err(), "{word}");
        }
    }
}
