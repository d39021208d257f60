//! The HTTP interface of okdb.
