//! The rules of LMDB under many processes, as an operator meets them.

mod backup;
mod beside;
mod disk_full;
mod format;
mod full_map;
mod stale_readers;
