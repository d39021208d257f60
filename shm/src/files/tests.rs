//! Tests of [`super`]: every way in which a segment can be missing, outdated or somebody else's.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;
use proptest::prelude::*;
use std::os::unix::fs::{FileExt, symlink};

/// A root directory with an identity of its own, whose segments are removed with it.
struct Root {
    dir: tempfile::TempDir,
    identity: Identity,
}

impl Root {
    fn new() -> Self {
        let root = okdb_sys::host::random_bytes().unwrap();
        Self {
            dir: tempfile::tempdir().unwrap(),
            identity: Identity::of_root(root).unwrap(),
        }
    }

    fn run(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn create(&self, placement: Placement) -> Arc<Segment> {
        Segment::create(&self.run(), &self.identity, placement).unwrap()
    }

    fn attach(&self) -> Result<Arc<Segment>, AttachError> {
        Segment::attach(&self.run(), &self.identity)
    }

    fn stale(&self) -> StaleReason {
        match self.attach().unwrap_err() {
            AttachError::Stale { reason, .. } => reason,
            other => panic!("{other}"),
        }
    }

    fn foreign(&self) -> ForeignReason {
        match self.attach().unwrap_err() {
            AttachError::Foreign { reason, .. } => reason,
            other => panic!("{other}"),
        }
    }

    /// Segment files of this root, wherever they lie.
    fn files(&self) -> Vec<PathBuf> {
        let prefix = format!("okdb-{:032x}-", u128::from_be_bytes(self.identity.root));
        [Path::new(DEV_SHM), &self.run()]
            .into_iter()
            .filter_map(|dir| fs::read_dir(dir).ok())
            .flatten()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_name().to_str().unwrap().starts_with(&prefix))
            .map(|entry| entry.path())
            .collect()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for file in self.files() {
            let _ = fs::remove_file(&file).or_else(|_| fs::remove_dir(&file));
        }
    }
}

#[test]
fn what_one_creates_another_attaches_to() {
    for placement in [Placement::DevShm, Placement::InRoot] {
        let root = Root::new();
        let ours = root.create(placement);
        let theirs = root.attach().unwrap();
        assert!(ours.is_shared() && theirs.is_shared());
        assert_eq!(ours.info(), theirs.info());
        ours.env(0).unwrap().publish(7);
        assert_eq!(theirs.env(0).unwrap().clock(), 7);
        let stamp = theirs.hlc().now(1);
        assert_eq!(ours.hlc().last(), stamp);
        let in_root = ours.path().unwrap().starts_with(root.dir.path());
        assert_eq!(in_root, placement == Placement::InRoot);
        let meta = fs::metadata(ours.path().unwrap()).unwrap();
        assert_eq!(meta.mode() & 0o7777, 0o600);
        assert!(
            meta.blocks() * 512 >= SEGMENT_BYTES as u64,
            "allocated, not sparse"
        );
    }
}

#[test]
fn a_new_one_replaces_all_old_ones() {
    let root = Root::new();
    let first = root.create(Placement::DevShm);
    let second = root.create(Placement::InRoot);
    let third = root.create(Placement::DevShm);
    assert_eq!(root.files(), [third.path().unwrap()]);
    assert_eq!(root.attach().unwrap().info().nonce, third.info().nonce);
    // Those that are mapped still can be used, they just lead nowhere any more.
    for segment in [first, second] {
        segment.env(0).unwrap().publish(1);
        segment.remove(&root.run()).unwrap();
    }
    assert!(root.attach().is_ok());
    third.remove(&root.run()).unwrap();
    third.remove(&root.run()).unwrap();
    assert_eq!(root.files(), Vec::<PathBuf>::new());
    assert!(matches!(
        root.attach().unwrap_err(),
        AttachError::Missing { .. }
    ));
}

#[test]
fn missing_names_and_files_are_told() {
    let root = Root::new();
    let error = root.attach().unwrap_err();
    assert!(matches!(error, AttachError::Missing { .. }), "{error}");
    fs::create_dir(root.run()).unwrap();
    let error = root.attach().unwrap_err();
    assert!(error.to_string().contains("run/segment"), "{error}");
    let segment = root.create(Placement::DevShm);
    fs::remove_file(segment.path().unwrap()).unwrap();
    let error = root.attach().unwrap_err();
    assert!(error.to_string().contains("/dev/shm/okdb-"), "{error}");
    assert!(matches!(error, AttachError::Missing { .. }));
}

type Damage = fn(&File);

#[test]
fn damaged_files_are_outdated_and_replaced() {
    let root = Root::new();
    let size = SEGMENT_BYTES as u64;
    let damages: [(Damage, StaleReason); 6] = [
        (|f| f.set_len(0).unwrap(), StaleReason::Size(0)),
        (|f| f.set_len(100).unwrap(), StaleReason::Size(100)),
        (
            |f| f.set_len(SEGMENT_BYTES as u64 + 1).unwrap(),
            StaleReason::Size(size + 1),
        ),
        (
            |f| f.write_all_at(&vec![0; SEGMENT_BYTES], 0).unwrap(),
            StaleReason::Magic,
        ),
        (
            |f| f.write_all_at(&[9, 0, 0, 0, 0, 0, 0, 0], 8).unwrap(),
            StaleReason::Layout(9),
        ),
        (
            |f| f.write_all_at(&[0; 8], 32).unwrap(),
            StaleReason::Checksum,
        ),
    ];
    for (damage, reason) in damages {
        // Not kept mapped: nobody uses it when the damage is done.
        let path = root.create(Placement::DevShm).path().unwrap().to_owned();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        damage(&file);
        assert_eq!(root.stale(), reason);
        let segment = root.create(Placement::DevShm);
        assert!(root.attach().is_ok());
        assert_eq!(root.files(), [segment.path().unwrap()]);
    }
}

#[test]
fn another_root_and_another_boot_are_outdated() {
    let mut root = Root::new();
    let _segment = root.create(Placement::DevShm);
    let boot = std::mem::replace(&mut root.identity.boot, [7; 16]);
    assert_eq!(root.stale(), StaleReason::Boot);
    root.identity.boot = boot;
    let own = root.identity.root;
    root.identity.root = [7; 16];
    assert_eq!(root.stale(), StaleReason::Root);
    root.identity.root = own;
}

#[test]
fn a_copied_root_neither_uses_nor_removes_the_originals_segment() {
    let root = Root::new();
    let copy = Root {
        dir: tempfile::tempdir().unwrap(),
        identity: root.identity,
    };
    let original = root.create(Placement::DevShm);
    fs::create_dir(copy.run()).unwrap();
    fs::copy(root.run().join(POINTER), copy.run().join(POINTER)).unwrap();
    assert_eq!(copy.stale(), StaleReason::Place);
    let own = copy.create(Placement::DevShm);
    assert_ne!(own.path(), original.path());
    assert!(root.attach().is_ok());
    assert_eq!(root.files().len(), 2);
}

#[test]
fn a_copied_segment_inside_a_root_is_outdated_and_cleaned_away() {
    let root = Root::new();
    let copy = Root {
        dir: tempfile::tempdir().unwrap(),
        identity: root.identity,
    };
    let original = root.create(Placement::InRoot);
    fs::create_dir(copy.run()).unwrap();
    for name in [
        Path::new(POINTER),
        Path::new(original.path().unwrap().file_name().unwrap()),
    ] {
        fs::copy(root.run().join(name), copy.run().join(name)).unwrap();
    }
    assert_eq!(copy.stale(), StaleReason::Place);
    let own = copy.create(Placement::DevShm);
    assert_eq!(copy.files(), [own.path().unwrap()]);
    assert!(root.attach().is_ok());
}

#[test]
fn links_directories_fifos_and_open_modes_are_foreign() {
    let root = Root::new();
    let replace = |with: &dyn Fn(&Path)| {
        let path = root.create(Placement::DevShm).path().unwrap().to_owned();
        fs::remove_file(&path).unwrap();
        with(&path);
    };
    let target = root.dir.path().join("target");
    fs::write(&target, "untouched").unwrap();
    replace(&|path| symlink(&target, path).unwrap());
    assert_eq!(root.foreign(), ForeignReason::Symlink);
    replace(&|path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap());
    assert_eq!(root.foreign(), ForeignReason::NotRegular);
    replace(&|path| fs::hard_link(&target, path).unwrap_or_else(|_| fs::create_dir(path).unwrap()));
    assert_eq!(root.foreign(), ForeignReason::NotRegular);
    replace(&|path| fs::create_dir(path).unwrap());
    assert_eq!(root.foreign(), ForeignReason::NotRegular);

    let segment = root.create(Placement::DevShm);
    for mode in [0o644, 0o660] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(segment.path().unwrap(), mode).unwrap();
        assert!(matches!(root.foreign(), ForeignReason::Mode(_)));
    }
    fs::set_permissions(segment.path().unwrap(), fs::Permissions::from_mode(0o000)).unwrap();
    let error = root.attach().unwrap_err();
    // A privileged user gets as far as the mode.
    assert!(matches!(
        error,
        AttachError::Denied { .. }
            | AttachError::Foreign {
                reason: ForeignReason::Mode(0),
                ..
            }
    ));
    let _fresh = root.create(Placement::DevShm);
    assert!(root.attach().is_ok());
    assert_eq!(fs::read_to_string(&target).unwrap(), "untouched");
}

#[test]
fn a_broken_name_is_outdated_and_a_foreign_one_is_refused() {
    let root = Root::new();
    let _segment = root.create(Placement::DevShm);
    let pointer = root.run().join(POINTER);
    for text in ["", "okdb-segment 1 dev-shm ../../etc/passwd\n", "x"] {
        fs::write(&pointer, text).unwrap();
        assert_eq!(root.stale(), StaleReason::Pointer);
    }
    let target = root.dir.path().join("target");
    fs::rename(&pointer, &target).unwrap();
    symlink(&target, &pointer).unwrap();
    assert_eq!(root.foreign(), ForeignReason::Symlink);
    let _segment = root.create(Placement::DevShm);
    assert!(root.attach().is_ok());
    assert_eq!(fs::read_to_string(&target).unwrap(), "x");

    fs::remove_file(&pointer).unwrap();
    fs::create_dir(&pointer).unwrap();
    assert_eq!(root.foreign(), ForeignReason::NotRegular);
    let error = Segment::create(&root.run(), &root.identity, Placement::DevShm).unwrap_err();
    assert!(error.to_string().contains("run/segment"), "{error}");
    assert_eq!(
        root.files(),
        Vec::<PathBuf>::new(),
        "nothing is left behind"
    );
}

#[test]
fn a_hole_in_the_file_is_filled_on_attaching() {
    let root = Root::new();
    let path = root.create(Placement::DevShm).path().unwrap().to_owned();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    file.set_len(SEGMENT_BYTES as u64).unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 < SEGMENT_BYTES as u64);
    let _segment = root.attach().unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 >= SEGMENT_BYTES as u64);
}

fn names() -> impl Strategy<Value = Name> {
    (any::<bool>(), any::<[u8; 16]>(), any::<u64>(), any::<u64>()).prop_map(
        |(in_root, root, place, nonce)| Name {
            placement: if in_root {
                Placement::InRoot
            } else {
                Placement::DevShm
            },
            root,
            place,
            nonce,
        },
    )
}

proptest! {
    #[test]
    fn a_name_survives_its_pointer(name in names()) {
        let text = name.to_pointer();
        prop_assert!((text.len() as u64) < POINTER_BYTES_MAX);
        prop_assert_eq!(Name::parse_pointer(text.as_bytes()), Some(name));
        prop_assert_eq!(Name::parse_file(name.placement, &name.file()), Some(name));
    }

    #[test]
    fn any_bytes_can_be_a_pointer(text: Vec<u8>) {
        prop_assert_eq!(Name::parse_pointer(&text), None);
    }

    #[test]
    fn a_changed_pointer_is_refused_or_is_another_name(
        name in names(), at: prop::sample::Index, byte: u8,
    ) {
        let mut text = name.to_pointer().into_bytes();
        let at = at.index(text.len());
        prop_assume!(text[at] != byte);
        text[at] = byte;
        if let Some(other) = Name::parse_pointer(&text) {
            prop_assert_ne!(other, name);
            prop_assert_eq!(other.to_pointer().into_bytes(), text);
        }
    }
}
