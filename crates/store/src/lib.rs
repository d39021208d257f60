//! The store of okdb: roots, environments, records, indexes, change log.
