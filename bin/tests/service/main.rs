//! A server as a service manager and a log's reader meet it: notifications, passed sockets, priorities, rotation,
//! readers that stop or go away; and what the commands for operators show of it.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod doctor;
mod logs;
mod manager;
mod metrics;
mod server;
mod status;
