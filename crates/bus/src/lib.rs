//! UDP pokes between the processes of one root.
