//! Checking LMDB's data file page by page, trusting nothing in it.
//!
//! LMDB takes its files at their word: a pointer that leads astray ends the process by a signal, or hands a live page out
//! as a free one. After a power loss an environment that was never synced may hold anything, so it is read here first,
//! with plain reads and bounds on everything. What passes can be opened: every page that a tree reaches lies in the file,
//! is what its parent takes it for, holds ordered keys within its bounds and has one parent; free pages are free.
//! Whether the rows make sense is then for `verify` to say.
//!
//! The format is that of LMDB 0.9 on a 64-bit host, in the host's byte order, without sorted duplicates, which this store
//! does not use. The caller makes sure that nobody has the file open for writing.

use std::{cmp::Ordering, fs::File, os::unix::fs::FileExt, path::Path};

const MAGIC: u32 = 0xBEEF_C0DE;
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const NODE_HEADER_BYTES: usize = 8;
const DB_BYTES: usize = 48;
const META_PAGES: u64 = 2;
/// Bytes of a meta page that mean something.
const META_BYTES: usize = 152;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const OVERFLOW: u16 = 0x04;
const META: u16 = 0x08;

const IN_OVERFLOW: u16 = 0x01;
const SUB_DATABASE: u16 = 0x02;

const NO_PAGE: u64 = u64::MAX;
/// LMDB's own bound on the depth of a tree.
const DEPTH_MAX: u16 = 32;
/// The largest data file that is looked into: LMDB page numbers have 48 bits, and maps are bounded long before.
const PAGES_MAX: u64 = 1 << 34;

/// Checks the data file at `path`; an error tells what is wrong with it. No file, or an empty one, is fine: LMDB makes it.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("the data file cannot be read: {error}")),
    };
    let bytes = file
        .metadata()
        .map_err(|error| format!("the data file cannot be read: {error}"))?
        .len();
    if bytes == 0 {
        return Ok(());
    }
    let meta = newest_meta(&file)?;
    let pages_in_file = bytes / meta.page_bytes as u64;
    if meta.last_page >= PAGES_MAX {
        return Err(format!("its last page is said to be {}", meta.last_page));
    }
    let mut walk = Walk {
        file: &file,
        page_bytes: meta.page_bytes,
        pages_in_file,
        last_page: meta.last_page,
        taken: PageSet::new(meta.last_page + 1),
    };
    for page in 0..META_PAGES {
        walk.take(page)?;
    }
    let mut databases = Vec::new();
    walk.tree("main", &meta.main, Keys::Bytes, &mut |node| {
        if node.flags != SUB_DATABASE || node.data.len() != DB_BYTES {
            return Err("the table of tables holds something else".into());
        }
        let name = String::from_utf8_lossy(node.key).into_owned();
        databases.push((name, Db::decode(node.data)));
        Ok(())
    })?;
    for (name, db) in &databases {
        walk.tree(name, db, Keys::Bytes, &mut |node| match node.flags {
            0 | IN_OVERFLOW => Ok(()),
            flags => Err(format!("a row has the flags {flags:#x}")),
        })?;
    }
    let mut free = Vec::new();
    walk.tree("free list", &meta.free, Keys::Integers, &mut |node| {
        let words = node.data.chunks_exact(8).map(|word| u64_at(word, 0));
        let mut words = words.skip(1);
        let count = u64_at(node.data.get(..8).ok_or("a row is too short")?, 0);
        let mut before = NO_PAGE;
        for _ in 0..count {
            let page = words.next().ok_or("a row is shorter than its count")?;
            if page >= before {
                return Err("pages are out of order".into());
            }
            before = page;
            free.push(page);
        }
        Ok(())
    })?;
    for page in free {
        walk.take(page)
            .map_err(|error| format!("the free list: {error}"))?;
    }
    Ok(())
}

/// What the newest meta page says.
struct Meta {
    page_bytes: usize,
    free: Db,
    main: Db,
    last_page: u64,
    transaction: u64,
}

fn newest_meta(file: &File) -> Result<Meta, String> {
    let first = meta_at(file, 0)?;
    let second = meta_at(file, first.page_bytes as u64)?;
    if first.page_bytes != second.page_bytes {
        return Err("its meta pages differ in page size".into());
    }
    Ok(if first.transaction < second.transaction {
        second
    } else {
        first
    })
}

fn meta_at(file: &File, offset: u64) -> Result<Meta, String> {
    let mut page = [0; META_BYTES];
    file.read_exact_at(&mut page, offset)
        .map_err(|error| format!("a meta page cannot be read: {error}"))?;
    let db = |at: usize| page.get(at..at + DB_BYTES).map(Db::decode);
    let (Some(free), Some(main)) = (db(40), db(88)) else {
        return Err("a meta page is too short".into());
    };
    if u16_at(&page, 10) != META || u32_at(&page, 16) != MAGIC || u32_at(&page, 20) != VERSION {
        return Err("a meta page is not one".into());
    }
    let page_bytes = usize::try_from(free.pad).unwrap_or(0);
    if !page_bytes.is_power_of_two() || !(512..=32_768).contains(&page_bytes) {
        return Err(format!("its pages are said to have {page_bytes} bytes"));
    }
    Ok(Meta {
        page_bytes,
        free,
        main,
        last_page: u64_at(&page, 136),
        transaction: u64_at(&page, 144),
    })
}

/// What LMDB notes of a tree.
struct Db {
    pad: u32,
    depth: u16,
    branch_pages: u64,
    leaf_pages: u64,
    overflow_pages: u64,
    entries: u64,
    root: u64,
}

impl Db {
    /// `bytes` are [`DB_BYTES`].
    fn decode(bytes: &[u8]) -> Self {
        Self {
            pad: u32_at(bytes, 0),
            depth: u16_at(bytes, 6),
            branch_pages: u64_at(bytes, 8),
            leaf_pages: u64_at(bytes, 16),
            overflow_pages: u64_at(bytes, 24),
            entries: u64_at(bytes, 32),
            root: u64_at(bytes, 40),
        }
    }
}

/// How a tree compares its keys.
#[derive(Clone, Copy)]
enum Keys {
    Bytes,
    Integers,
}

impl Keys {
    fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Self::Bytes => a.cmp(b),
            Self::Integers => u64_at(a, 0).cmp(&u64_at(b, 0)),
        }
    }

    fn in_order(self, a: &[u8], b: &[u8]) -> Result<(), String> {
        if self.compare(a, b).is_lt() {
            Ok(())
        } else {
            Err("keys are out of order".into())
        }
    }
}

/// A row of a leaf.
struct Node<'p> {
    flags: u16,
    key: &'p [u8],
    /// The row itself, read from its overflow pages if it lies there.
    data: &'p [u8],
}

/// A page still to be visited.
struct Due {
    page: u64,
    level: u16,
    /// The separator in front of it: the first key below is not smaller, all keys before are.
    floor: Option<Vec<u8>>,
}

struct Walk<'f> {
    file: &'f File,
    page_bytes: usize,
    pages_in_file: u64,
    last_page: u64,
    taken: PageSet,
}

impl Walk<'_> {
    /// Notes that a page is in use, or free; each can be so once.
    fn take(&mut self, page: u64) -> Result<(), String> {
        if page > self.last_page {
            return Err(format!("page {page} lies behind the last one"));
        }
        if self.taken.insert(page) {
            Ok(())
        } else {
            Err(format!("page {page} is used twice"))
        }
    }

    fn read(&self, page: u64, out: &mut [u8]) -> Result<(), String> {
        if page >= self.pages_in_file {
            return Err(format!("page {page} lies behind the end of the file"));
        }
        let offset = page * self.page_bytes as u64;
        self.file
            .read_exact_at(out, offset)
            .map_err(|error| format!("page {page} cannot be read: {error}"))
    }

    /// Takes a page and checks its header.
    fn page(&mut self, page: u64, flags: u16, out: &mut [u8]) -> Result<(), String> {
        self.take(page)?;
        self.read(page, out)?;
        if u64_at(out, 0) != page || u16_at(out, 10) != flags {
            return Err(format!("page {page} is not what it is taken for"));
        }
        Ok(())
    }

    /// Walks a tree in key order.
    fn tree(
        &mut self,
        name: &str,
        db: &Db,
        keys: Keys,
        visit: &mut dyn FnMut(&Node<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.descend(db, keys, visit)
            .map_err(|error| format!("table {name:?}: {error}"))
    }

    fn descend(
        &mut self,
        db: &Db,
        keys: Keys,
        visit: &mut dyn FnMut(&Node<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut tree = Tree::new(keys);
        match (db.root, db.depth) {
            (NO_PAGE, 0) => {}
            (root, 1..=DEPTH_MAX) => tree.due.push(Due {
                page: root,
                level: 1,
                floor: None,
            }),
            (root, depth) => return Err(format!("root {root} with depth {depth}")),
        }
        let mut page = vec![0; self.page_bytes];
        while let Some(due) = tree.due.pop() {
            let leaf = due.level == db.depth;
            self.page(due.page, if leaf { LEAF } else { BRANCH }, &mut page)?;
            let visited = if leaf {
                self.leaf(&mut tree, &due, &page, visit)
            } else {
                tree.branch(&due, &page)
            };
            visited.map_err(|error| format!("page {}: {error}", due.page))?;
        }
        let counted = [
            db.branch_pages,
            db.leaf_pages,
            db.overflow_pages,
            db.entries,
        ];
        if tree.seen != counted {
            return Err("it has other pages and rows than are counted".into());
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        tree: &mut Tree,
        due: &Due,
        page: &[u8],
        visit: &mut dyn FnMut(&Node<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        tree.seen[LEAVES] += 1;
        // The separator stands between the pages before and this one.
        if let (Some(last), Some(floor)) = (&tree.last_key, &due.floor) {
            tree.keys.in_order(last, floor)?;
        }
        let nodes = node_offsets(page)?;
        if nodes.is_empty() {
            return Err("it has no rows".into());
        }
        for offset in nodes {
            let leaf = LeafNode::decode(page, offset, tree.keys).ok_or("a node does not fit")?;
            if let Some(last) = &tree.last_key {
                tree.keys.in_order(last, leaf.key)?;
            }
            if let Some(floor) = &due.floor
                && tree.keys.compare(floor, leaf.key).is_gt()
            {
                return Err("a key lies before its page's".into());
            }
            tree.last_key = Some(leaf.key.to_vec());
            tree.seen[ENTRIES] += 1;
            let overflow;
            let data = match leaf.data {
                Data::Here(data) => data,
                Data::Elsewhere { page, bytes } => {
                    overflow = self.overflow(tree, page, bytes)?;
                    overflow.as_slice()
                }
            };
            visit(&Node {
                flags: leaf.flags,
                key: leaf.key,
                data,
            })?;
        }
        Ok(())
    }

    /// Reads a row that lies in pages of its own.
    fn overflow(&mut self, tree: &mut Tree, first: u64, bytes: usize) -> Result<Vec<u8>, String> {
        let count = (HEADER_BYTES - 1 + bytes) / self.page_bytes + 1;
        let pages = count as u64;
        let end = first.checked_add(pages);
        if end.is_none_or(|end| end > self.pages_in_file) {
            return Err(format!(
                "a row of {bytes} bytes at page {first} does not fit the file"
            ));
        }
        let mut buffer = vec![0; count * self.page_bytes];
        let (head, _) = buffer.split_at_mut(self.page_bytes);
        self.page(first, OVERFLOW, head)?;
        if u64::from(u32_at(head, 12)) != pages {
            return Err(format!("the row at page {first} has another length"));
        }
        for page in first + 1..first + pages {
            self.take(page)?;
        }
        self.read(first, &mut buffer)?;
        buffer.drain(..HEADER_BYTES);
        buffer.truncate(bytes);
        tree.seen[OVERFLOWS] += pages;
        Ok(buffer)
    }
}

/// A tree being walked.
struct Tree {
    keys: Keys,
    due: Vec<Due>,
    last_key: Option<Vec<u8>>,
    /// Branch, leaf and overflow pages, and rows, as LMDB counts them.
    seen: [u64; 4],
}

const BRANCHES: usize = 0;
const LEAVES: usize = 1;
const OVERFLOWS: usize = 2;
const ENTRIES: usize = 3;

impl Tree {
    fn new(keys: Keys) -> Self {
        Self {
            keys,
            due: Vec::new(),
            last_key: None,
            seen: [0; 4],
        }
    }

    fn branch(&mut self, due: &Due, page: &[u8]) -> Result<(), String> {
        self.seen[BRANCHES] += 1;
        let nodes = node_offsets(page)?;
        if nodes.is_empty() {
            return Err("it has no children".into());
        }
        // From the last one on: the first child comes off the stack first.
        for (place, offset) in nodes.into_iter().enumerate().rev() {
            let first = place == 0;
            let (child, key) =
                branch_node(page, offset, self.keys, first).ok_or("a node does not fit")?;
            // The first key of a branch page means nothing; what stands before the page does.
            let floor = if first {
                due.floor.clone()
            } else {
                Some(key.to_vec())
            };
            self.due.push(Due {
                page: child,
                level: due.level + 1,
                floor,
            });
        }
        Ok(())
    }
}

/// Where the nodes of a branch or leaf page begin, in key order. They fill the page from `upper` to its end.
fn node_offsets(page: &[u8]) -> Result<Vec<usize>, String> {
    let (lower, upper) = (usize::from(u16_at(page, 12)), usize::from(u16_at(page, 14)));
    if lower < HEADER_BYTES || lower > upper || upper > page.len() || !lower.is_multiple_of(2) {
        return Err("its bounds make no sense".into());
    }
    let offsets = page.get(HEADER_BYTES..lower).unwrap_or_default();
    let offsets: Vec<_> = offsets
        .chunks_exact(2)
        .map(|offset| usize::from(u16_at(offset, 0)))
        .collect();
    let mut by_place = offsets.clone();
    by_place.sort_unstable();
    let mut end = upper;
    for offset in by_place {
        if offset != end {
            return Err("its nodes overlap or leave gaps".into());
        }
        end += node_bytes(page, offset);
    }
    if end != page.len() {
        return Err("its nodes overlap or leave gaps".into());
    }
    Ok(offsets)
}

/// The room that a node takes in its page.
fn node_bytes(page: &[u8], offset: usize) -> usize {
    let key = usize::from(u16_at(page, offset + 6));
    let data = match u16_at(page, 10) {
        BRANCH => 0,
        _ if u16_at(page, offset + 4) & IN_OVERFLOW != 0 => 8,
        _ => usize::from(u16_at(page, offset)) | usize::from(u16_at(page, offset + 2)) << 16,
    };
    (NODE_HEADER_BYTES + key + data).next_multiple_of(2)
}

/// The child and the key of a node of a branch page.
fn branch_node(page: &[u8], offset: usize, keys: Keys, first: bool) -> Option<(u64, &[u8])> {
    let head = page.get(offset..offset + NODE_HEADER_BYTES)?;
    let [low, high, top, key_bytes] = [0, 2, 4, 6].map(|at| u64::from(u16_at(head, at)));
    let key_bytes = usize::try_from(key_bytes).ok()?;
    let key = page.get(offset + NODE_HEADER_BYTES..)?.get(..key_bytes)?;
    let fits = first || key_fits(key, keys);
    fits.then_some((low | high << 16 | top << 32, key))
}

fn key_fits(key: &[u8], keys: Keys) -> bool {
    match keys {
        Keys::Bytes => !key.is_empty(),
        Keys::Integers => key.len() == 8,
    }
}

/// A node of a leaf page.
struct LeafNode<'p> {
    flags: u16,
    key: &'p [u8],
    data: Data<'p>,
}

enum Data<'p> {
    Here(&'p [u8]),
    Elsewhere { page: u64, bytes: usize },
}

impl<'p> LeafNode<'p> {
    fn decode(page: &'p [u8], offset: usize, keys: Keys) -> Option<Self> {
        let head = page.get(offset..offset + NODE_HEADER_BYTES)?;
        let bytes = usize::from(u16_at(head, 0)) | usize::from(u16_at(head, 2)) << 16;
        let flags = u16_at(head, 4);
        let rest = page.get(offset + NODE_HEADER_BYTES..)?;
        let (key, rest) = rest.split_at_checked(usize::from(u16_at(head, 6)))?;
        let data = if flags & IN_OVERFLOW == 0 {
            Data::Here(rest.get(..bytes)?)
        } else {
            let page = u64_at(rest.get(..8)?, 0);
            Data::Elsewhere { page, bytes }
        };
        key_fits(key, keys).then_some(Self { flags, key, data })
    }
}

/// A bit for each page.
struct PageSet(Vec<u64>);

impl PageSet {
    fn new(pages: u64) -> Self {
        let words = usize::try_from(pages / 64 + 1).unwrap_or(0);
        Self(vec![0; words])
    }

    /// Adds a page; tells whether it was not there.
    fn insert(&mut self, page: u64) -> bool {
        let word = usize::try_from(page / 64).ok();
        let Some(word) = word.and_then(|word| self.0.get_mut(word)) else {
            return false;
        };
        let bit = 1 << (page % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

/// The integer at a place that the caller has made sure of; zero where there is none.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u64::from_ne_bytes(*word))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u16::from_ne_bytes(*word))
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
