//! How deep a check can recurse, computed before it runs.
//!
//! A check recurses once for each subschema within a subschema, and once for each level of the record. Whoever writes
//! a schema chooses the product: a chain of a hundred `allOf` around a `$ref` to the root is entered anew on
//! every level of a record. The thread that checks has a stack of 2 MiB and would die, and with it the process.

use okdb_query::DEPTH_MAX;

use crate::{
    SchemaError,
    graph::{Apply, Graph},
};

/// How many subschemas may be entered within each other. Measured: a debug build spends up to 600 bytes of stack on
/// each, so this leaves a thread of 2 MiB three quarters of it.
const ENTERED_MAX: u32 = 1024;
/// How many times subschemas may be entered for one value of a record, not counting its members and elements.
/// Without it, twenty `allOf` of two `$ref`s each to the next would mean a million checks.
const TIMES_MAX: u64 = 4096;

/// What a check with a schema costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// For records 0, 1, 2, … levels deep: how many subschemas are entered within each other at most. Records
    /// deeper than the list need what its last entry says.
    entered: Vec<u32>,
}

impl Cost {
    /// # Errors
    /// When a subschema applies itself to the same value without end, or too many are applied to one value.
    pub(crate) fn of(graph: &Graph<'_>) -> Result<Self, SchemaError> {
        let order = innermost_first(graph)?;
        times(graph, &order)?;
        let mut entered = Vec::new();
        let mut before: Vec<u32> = Vec::new();
        for _ in 0..=DEPTH_MAX {
            let mut now = vec![0_u32; graph.nodes.len()];
            for &at in &order {
                let inner = graph.nodes[at].edges.iter().map(|edge| match edge.apply {
                    Apply::Never => 0,
                    apply if apply.in_place() => now[edge.to],
                    _ => before.get(edge.to).copied().unwrap_or(0),
                });
                now[at] = inner.max().unwrap_or(0).saturating_add(1);
            }
            let same = now == before;
            if same {
                break;
            }
            entered.push(now[0]);
            before = now;
        }
        Ok(Self { entered })
    }

    /// Whether a record that is `depth` levels deep can be checked.
    pub(crate) fn bears(&self, depth: usize) -> bool {
        self.entered
            .get(depth)
            .or(self.entered.last())
            .is_none_or(|entered| *entered <= ENTERED_MAX)
    }
}

/// All nodes, each behind those that it applies to the same value. Without recursion: a chain may be long.
fn innermost_first(graph: &Graph<'_>) -> Result<Vec<usize>, SchemaError> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut states = vec![State::New; graph.nodes.len()];
    let mut order = Vec::with_capacity(graph.nodes.len());
    for start in 0..graph.nodes.len() {
        // A node and how many of its edges have been followed.
        let mut open = vec![(start, 0)];
        while let Some((at, next)) = open.last_mut() {
            let at = *at;
            if *next == 0 && states[at] == State::Done {
                open.pop();
                continue;
            }
            states[at] = State::Open;
            let edges = &graph.nodes[at].edges[*next..];
            let Some(skip) = edges.iter().position(|edge| edge.apply.in_place()) else {
                states[at] = State::Done;
                order.push(at);
                open.pop();
                continue;
            };
            *next += skip + 1;
            let to = edges[skip].to;
            match states[to] {
                State::New => open.push((to, 0)),
                State::Done => {}
                State::Open => {
                    let message = "the schema applies itself to the same value without end";
                    return Err(SchemaError::new(&graph.nodes[to].pointer, message));
                }
            }
        }
    }
    Ok(order)
}

fn times(graph: &Graph<'_>, order: &[usize]) -> Result<(), SchemaError> {
    let mut times = vec![0_u64; graph.nodes.len()];
    for &at in order {
        let edges = graph.nodes[at].edges.iter();
        let inner = edges.filter(|edge| edge.apply.in_place());
        times[at] = inner
            .map(|edge| times[edge.to])
            .fold(1, u64::saturating_add);
        if times[at] > TIMES_MAX {
            let message = format!("more than {TIMES_MAX} schemas would apply to one value");
            return Err(SchemaError::new(&graph.nodes[at].pointer, message));
        }
    }
    Ok(())
}
