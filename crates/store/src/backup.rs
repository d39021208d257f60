//! A hot copy of a root, through LMDB: its files are never opened by other means.

use std::{
    fs,
    path::{Path, PathBuf},
};

use heed::CompactionOption;

use crate::{OpenError, Store, lmdb::Lmdb, root, system};

impl Store {
    /// Copies the root into `to`, a folder that is empty or does not exist, while writes go on. Each environment is copied
    /// as of one moment, without its free pages; `progress` hears how many of how many are done.
    ///
    /// The copy is a root of its own with the same identity and secret. Its `format` file is written last: a copy that was
    /// cut short is not taken for a root. Returns the bytes written.
    ///
    /// # Errors
    /// [`OpenError::NotARoot`] if `to` is not empty; what LMDB or the file system report.
    pub fn backup(
        &self,
        to: &Path,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<u64, OpenError> {
        root::make_folder(to)?;
        if fs::read_dir(to)
            .map_err(OpenError::io(to))?
            .next()
            .is_some()
        {
            return Err(OpenError::NotARoot {
                root: to.to_owned(),
                reason: "a backup needs an empty or a new folder".into(),
            });
        }
        // While the registry is read and copied, no environment is made: the copy names exactly those that it will hold.
        let system = self.system();
        let registry = system.lmdb().write_txn().map_err(crate::Error::from)?;
        let envs = system.envs()?;
        let mut bytes = copy(system.lmdb(), &to.join("system"))?;
        registry.abort();
        let steps = envs.len() + 1;
        progress(1, steps);
        for (done, (name, row)) in envs.iter().enumerate() {
            let env = self.env(name)?;
            bytes += copy(&env.0.lmdb, &system::env_dir(to, name, row))?;
            progress(done + 2, steps);
        }
        root::write_format(to)?;
        Ok(bytes)
    }
}

fn copy(lmdb: &Lmdb, dir: &Path) -> Result<u64, OpenError> {
    root::make_folder(dir)?;
    let path: PathBuf = dir.join("data.mdb");
    let file = lmdb
        .copy_to_path(&path, CompactionOption::Enabled)
        .map_err(crate::Error::from)?;
    file.sync_all().map_err(OpenError::io(&path))?;
    for folder in dir.ancestors().take(3) {
        root::sync_folder(folder).map_err(OpenError::io(folder))?;
    }
    let bytes = file.metadata().map_err(OpenError::io(&path))?.len();
    Ok(bytes)
}
