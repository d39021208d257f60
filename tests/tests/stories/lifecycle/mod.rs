//! Starting, staying up, and ending: what the supervisor promises.

mod cleanliness;
mod crash_loop;
mod namespaces;
mod pid_reuse;
mod primary_death;
mod ready;
mod refusals;
mod second_start;
mod segment;
mod stop;
mod stop_held;
mod worker_count;
mod worker_death;
