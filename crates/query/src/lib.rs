//! The filter, patch and ordering language of okdb on JSON: pure, no I/O.
