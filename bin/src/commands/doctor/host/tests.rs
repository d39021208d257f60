//! Each verdict, from what the kernel would say.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;

/// The verdict and the line of a check.
fn judged(judge: impl FnOnce(&mut Report)) -> (Verdict, String) {
    let mut report = Report::default();
    judge(&mut report);
    assert_eq!(report.0.len(), 1, "{report:?}");
    let check = report.0.remove(0);
    assert_eq!(
        check.remedy.is_some(),
        check.verdict != Verdict::Good,
        "what is wrong has a remedy: {check:?}"
    );
    (check.verdict, check.line())
}

#[test]
fn network_file_systems_are_refused_and_memory_is_questioned() {
    let verdict = |name, network| judged(|report| judge_file_system(report, name, network)).0;
    assert_eq!(verdict("ext", false), Verdict::Good);
    assert_eq!(verdict("nfs", true), Verdict::Bad);
    assert_eq!(verdict("tmpfs", false), Verdict::Odd);
}

#[test]
fn room_on_the_disk_has_two_bounds() {
    let verdict = |free| judged(|report| judge_disk(report, free)).0;
    assert_eq!(verdict(DISK_FREE_LOW), Verdict::Good);
    assert_eq!(verdict(DISK_FREE_LOW - 1), Verdict::Odd);
    assert_eq!(verdict(DISK_FREE_MIN - 1), Verdict::Bad);
}

#[test]
fn shared_memory_needs_room_and_should_be_memory() {
    let verdict = |fs, free| judged(|report| judge_shared_memory(report, fs, free)).0;
    assert_eq!(verdict(Some("tmpfs"), 64 << 20), Verdict::Good);
    assert_eq!(verdict(Some("tmpfs"), 1024), Verdict::Bad);
    assert_eq!(verdict(Some("ext"), 64 << 20), Verdict::Odd);
    assert_eq!(verdict(None, 0), Verdict::Odd);
}

#[test]
fn descriptors_have_to_suffice_for_the_connections() {
    let verdict = |limit| judged(|report| judge_open_files(report, limit, 10_000)).0;
    assert_eq!(verdict(65_536), Verdict::Good);
    assert_eq!(verdict(10_000), Verdict::Odd);
    assert_eq!(verdict(64), Verdict::Bad);
    let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                  Max open files            1024                 20000                files     \n";
    assert_eq!(open_files_limit(limits), Some(1024));
    let limits = limits.replace("1024 ", "unlimited ");
    assert_eq!(open_files_limit(&limits), Some(u64::MAX));
    assert_eq!(open_files_limit(""), None);
}

#[test]
fn swap_is_seen() {
    let head = "Filename\tType\tSize\tUsed\tPriority\n";
    let verdict = |swaps: &str| judged(|report| judge_swap(report, swaps)).0;
    assert_eq!(verdict(head), Verdict::Good);
    assert_eq!(
        verdict(&format!("{head}/dev/sda2 partition 1 0 -2\n")),
        Verdict::Odd
    );
}

#[test]
fn the_tightest_memory_limit_counts_in_both_versions_of_control_groups() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("system.slice/memory.max", "1073741824\n");
    write("system.slice/okdb.service/memory.max", "max\n");
    write(
        "system.slice/okdb.service/memory.events",
        "low 0\noom 3\noom_kill 2\n",
    );
    let second = memory_of("0::/system.slice/okdb.service\n", folder.path());
    assert_eq!(
        second,
        Memory {
            limit: Some(1 << 30),
            kills: 2
        }
    );

    write("memory/docker/abc/memory.limit_in_bytes", "134217728\n");
    write("memory/memory.limit_in_bytes", "9223372036854771712\n");
    let first = memory_of(
        "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/none\n",
        folder.path(),
    );
    assert_eq!(
        first,
        Memory {
            limit: Some(128 << 20),
            kills: 0
        }
    );

    assert_eq!(memory_of("0::/\n", folder.path()), Memory::default());
    assert_eq!(memory_of("not a table", folder.path()), Memory::default());
}

#[test]
fn a_tight_memory_limit_and_kills_are_told() {
    let judge = |limit, kills| judged(|report| judge_memory(report, Memory { limit, kills }));
    assert_eq!(judge(None, 0).0, Verdict::Good);
    assert_eq!(judge(Some(1 << 30), 0).0, Verdict::Good);
    assert_eq!(judge(Some(MEMORY_LOW - 1), 0).0, Verdict::Odd);
    let (verdict, line) = judge(Some(1 << 30), 3);
    assert_eq!(verdict, Verdict::Odd);
    assert!(line.contains("killed 3"), "{line}");
}

#[test]
fn a_service_is_known_by_its_control_group() {
    assert_eq!(
        unit("0::/system.slice/okdb.service\n"),
        Some("okdb.service")
    );
    assert_eq!(
        unit("0::/system.slice/system-okdb.slice/okdb@a.service/x\n"),
        Some("okdb@a.service")
    );
    assert_eq!(
        unit("0::/user.slice/user-1000.slice/session-1.scope\n"),
        None
    );
    let environment =
        b"HOME=/\0NOTIFY_SOCKET=/run/systemd/notify\0WATCHDOG_USEC=30000000\0LISTEN_FDS=1\0";
    let told = arranged(environment);
    assert!(
        told.contains("hears") && told.contains("30 s") && told.contains("socket unit"),
        "{told}"
    );
    assert_eq!(arranged(b""), "");
}

#[test]
fn what_people_leave_behind_is_removed_unless_somebody_said_no() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path();
    let write = |path: &str, text: &str| {
        let path = top.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        "etc/passwd",
        "root:x:0:0::/:/bin/sh\nanna:x:1000:1000::/:/bin/sh\n",
    );
    assert!(!removes_ipc(999, top));
    assert!(removes_ipc(1000, top));
    write("etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n");
    assert!(removes_ipc(1000, top));
    write(
        "etc/systemd/logind.conf.d/50.conf",
        "[Login]\nRemoveIPC=no\n",
    );
    assert!(!removes_ipc(1000, top));
    write(
        "etc/systemd/logind.conf.d/60.conf",
        "[Login]\nRemoveIPC=yes\n",
    );
    assert!(removes_ipc(1000, top));
    write("var/lib/systemd/linger/anna", "");
    assert!(!removes_ipc(1000, top));
}

#[test]
fn a_folder_that_cannot_be_written_to_is_known_without_trying() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(unwritable(folder.path()), None);
    assert!(unwritable(&folder.path().join("nowhere")).is_some());
    assert!(
        unwritable(Path::new("/proc/self")).is_some() || nix::unistd::Uid::effective().is_root()
    );
    assert_eq!(existing(&folder.path().join("a/b/c")), folder.path());
    assert_eq!(existing(Path::new("no-such-folder")), Path::new("."));
}
