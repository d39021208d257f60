//! Finds the `ref` annotations of a schema: which are honoured, where, and which cannot be.
//!
//! Honoured is what holds for every record: below `properties`, `items` and `allOf`, and where a `$ref` leads
//! from there. An annotation that depends on anything else would be a reference in one record and none in
//! the next; it is refused, never passed over.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use okdb_query::{DEPTH_MAX, Value};

use crate::{
    OnDelete, RefPath, Reference, SchemaError, Step, annotation,
    graph::{Apply, Edge, Graph},
};

/// The most references of a schema.
const REFERENCES_MAX: usize = 64;
/// The most combinations of subschema and path that are looked at to find them.
const VISITS_MAX: usize = 100_000;

/// The references of a schema, ordered by path.
pub(crate) fn find(graph: &Graph<'_>) -> Result<Vec<Reference>, SchemaError> {
    let annotated: Vec<usize> = (0..graph.nodes.len())
        .filter(|at| graph.nodes[*at].schema.get("ref").is_some())
        .collect();
    if annotated.is_empty() {
        return Ok(Vec::new());
    }
    refuse_unhonoured(graph, &annotated)?;
    let holders = holders(graph, &annotated);
    refuse_recursion(graph, &holders)?;
    expand(graph, &holders)
}

/// The subschemas that apply to the values at `path`, as far as they do so in every record.
pub(crate) fn applied_at(graph: &Graph<'_>, path: &RefPath) -> BTreeSet<usize> {
    let mut at = BTreeSet::from([0]);
    for step in path.steps() {
        let mut open: Vec<usize> = at.iter().copied().collect();
        let mut next = BTreeSet::new();
        while let Some(node) = open.pop() {
            for edge in &graph.nodes[node].edges {
                if edge.apply == Apply::Always && at.insert(edge.to) {
                    open.push(edge.to);
                } else if step_of(edge).as_ref() == Some(step) {
                    next.insert(edge.to);
                }
            }
        }
        at = next;
    }
    at
}

fn honoured(edge: &Edge<'_>) -> bool {
    matches!(edge.apply, Apply::Property | Apply::Items | Apply::Always)
}

fn step_of(edge: &Edge<'_>) -> Option<Step> {
    match edge.apply {
        Apply::Property => Some(Step::Member(edge.name.to_owned())),
        Apply::Items => Some(Step::Items),
        _ => None,
    }
}

fn reach(graph: &Graph<'_>, start: Vec<usize>, follow: impl Fn(&Edge<'_>) -> bool) -> Vec<bool> {
    let mut reached = vec![false; graph.nodes.len()];
    let mut open = start;
    while let Some(at) = open.pop() {
        if !std::mem::replace(&mut reached[at], true) {
            let edges = graph.nodes[at].edges.iter();
            open.extend(edges.filter(|edge| follow(edge)).map(|edge| edge.to));
        }
    }
    reached
}

fn refuse_unhonoured(graph: &Graph<'_>, annotated: &[usize]) -> Result<(), SchemaError> {
    let always = reach(graph, vec![0], honoured);
    let doubtful = (0..graph.nodes.len())
        .filter(|at| always[*at])
        .flat_map(|at| &graph.nodes[at].edges)
        .filter(|edge| !honoured(edge) && edge.apply != Apply::Never)
        .map(|edge| edge.to);
    let doubtful = reach(graph, doubtful.collect(), |edge| edge.apply != Apply::Never);
    for &at in annotated {
        let pointer = format!("{}/ref", graph.nodes[at].pointer);
        let wrong = |message: &str| Err(SchemaError::new(&pointer, message));
        if doubtful[at] {
            return wrong(
                "`ref` counts only where properties, items (without prefixItems), allOf and $ref lead, \
                 and something else leads here",
            );
        }
        if !always[at] {
            return wrong(
                "`ref` counts only where properties, items (without prefixItems), allOf and $ref lead, \
                 and none of them leads here",
            );
        }
    }
    Ok(())
}

/// Which nodes lead to an annotation, or have one.
fn holders(graph: &Graph<'_>, annotated: &[usize]) -> Vec<bool> {
    let mut backwards = vec![Vec::new(); graph.nodes.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        for edge in node.edges.iter().filter(|edge| honoured(edge)) {
            backwards[edge.to].push(at);
        }
    }
    let mut holds = vec![false; graph.nodes.len()];
    let mut open = annotated.to_vec();
    while let Some(at) = open.pop() {
        if !std::mem::replace(&mut holds[at], true) {
            open.extend(&backwards[at]);
        }
    }
    holds
}

/// Refuses a cycle among holders: it would mean references at infinitely many paths.
fn refuse_recursion(graph: &Graph<'_>, holds: &[bool]) -> Result<(), SchemaError> {
    let followed = |at: usize| {
        let edges = graph.nodes[at].edges.iter();
        edges
            .filter(|edge| honoured(edge) && holds[edge.to])
            .map(|edge| edge.to)
    };
    let nodes = || (0..graph.nodes.len()).filter(|at| holds[*at]);
    let mut entries = vec![0_usize; graph.nodes.len()];
    for to in nodes().flat_map(followed) {
        entries[to] += 1;
    }
    let mut open: Vec<usize> = nodes().filter(|at| entries[*at] == 0).collect();
    let mut left = nodes().count();
    while let Some(at) = open.pop() {
        left -= 1;
        for to in followed(at) {
            entries[to] -= 1;
            if entries[to] == 0 {
                open.push(to);
            }
        }
    }
    if left == 0 {
        return Ok(());
    }
    let at = nodes().find(|at| entries[*at] > 0).unwrap_or(0);
    let message = "a schema that contains itself cannot hold a `ref`";
    Err(SchemaError::new(&graph.nodes[at].pointer, message))
}

fn expand(graph: &Graph<'_>, holds: &[bool]) -> Result<Vec<Reference>, SchemaError> {
    let mut found: BTreeMap<RefPath, (String, OnDelete)> = BTreeMap::new();
    let mut seen = HashSet::new();
    let mut open = vec![(0, Vec::new())];
    while let Some((at, steps)) = open.pop() {
        let node = &graph.nodes[at];
        let wrong = |message: String| Err(SchemaError::new(&node.pointer, message));
        if steps.len() > DEPTH_MAX {
            return wrong(format!("a `ref` lies deeper than {DEPTH_MAX} levels"));
        }
        if !seen.insert((at, steps.clone())) {
            continue;
        }
        if seen.len() > VISITS_MAX {
            return wrong("too many ways lead to a `ref`".to_owned());
        }
        if let Some(value) = node.schema.get("ref") {
            add(&mut found, node.schema, value, &node.pointer, &steps)?;
        }
        for edge in node
            .edges
            .iter()
            .filter(|edge| honoured(edge) && holds[edge.to])
        {
            let mut steps = steps.clone();
            steps.extend(step_of(edge));
            open.push((edge.to, steps));
        }
    }
    let references = found.into_iter();
    Ok(references
        .map(|(path, (target, on_delete))| Reference {
            path,
            target,
            on_delete,
        })
        .collect())
}

fn add(
    found: &mut BTreeMap<RefPath, (String, OnDelete)>,
    owner: &Value<'_>,
    value: &Value<'_>,
    pointer: &str,
    steps: &[Step],
) -> Result<(), SchemaError> {
    let meaning = annotation::read(owner, value, pointer)?;
    let pointer = format!("{pointer}/ref");
    if steps.is_empty() {
        let message = "`ref` needs a property or an item: a record as a whole is no reference";
        return Err(SchemaError::new(&pointer, message));
    }
    let path = RefPath::new(steps.to_vec());
    match found.get(&path) {
        None => {}
        Some(other) if *other == meaning => return Ok(()),
        Some(_) => {
            let message = format!("two different `ref` are given for {path}");
            return Err(SchemaError::new(&pointer, message));
        }
    }
    if found.len() == REFERENCES_MAX {
        let message = format!("a schema has at most {REFERENCES_MAX} references");
        return Err(SchemaError::new(&pointer, message));
    }
    found.insert(path, meaning);
    Ok(())
}
