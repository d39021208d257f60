//! Black-box tests of the okdb command.
