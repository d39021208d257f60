//! okdb as a library: open a root, read, write, query, serve.
