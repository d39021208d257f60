//! Slots, listeners, respawn and signals of an okdb primary.
