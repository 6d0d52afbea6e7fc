//! The cache folder. It holds sets of files; each set is complete or absent.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use serde::de::DeserializeOwned;

const MANIFEST: &str = "manifest.json";

/// The folder for all fetched files.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The user's cache: `$XDG_CACHE_HOME/bareverbs`, or `~/.cache/bareverbs`.
    pub fn open() -> Result<Self> {
        let root = user_cache(std::env::var_os("XDG_CACHE_HOME"), std::env::home_dir())
            .context("no cache folder: set XDG_CACHE_HOME or HOME")?;
        Self::at(root)
    }

    /// A cache in a folder of the caller's choice.
    pub fn at(root: PathBuf) -> Result<Self> {
        fs::create_dir_all(&root).with_context(|| format!("creating the cache folder {}", root.display()))?;
        Ok(Self { root })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The metadata and the folder of the set `name`, if it exists.
    pub fn get<M: DeserializeOwned>(&self, name: &str) -> Option<(PathBuf, M)> {
        let folder = self.root.join(name);
        let manifest = fs::read(folder.join(MANIFEST)).ok()?;
        Some((folder, serde_json::from_slice(&manifest).ok()?))
    }

    /// The set `name`. If it does not exist, or with `refresh`, `fill` creates it in an empty
    /// folder.
    ///
    /// Only a complete set is renamed to `name`. Processes that want the same set wait for each
    /// other.
    pub fn ensure<M: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        refresh: bool,
        fill: impl FnOnce(&Path) -> Result<M>,
    ) -> Result<(PathBuf, M)> {
        if !refresh && let Some(found) = self.get(name) {
            return Ok(found);
        }
        let _lock = self.lock(name)?;
        if !refresh && let Some(found) = self.get(name) {
            return Ok(found);
        }
        let folder = self.root.join(name);
        let fresh = self.root.join(format!("{name}.new"));
        remove(&fresh)?;
        fs::create_dir_all(&fresh).with_context(|| format!("creating {}", fresh.display()))?;
        let manifest = fill(&fresh)?;
        fs::write(fresh.join(MANIFEST), serde_json::to_vec_pretty(&manifest)?)?;
        remove(&folder)?;
        fs::rename(&fresh, &folder).with_context(|| format!("moving {} into place", fresh.display()))?;
        Ok((folder, manifest))
    }

    /// Keeps other processes from filling `name` until the lock is dropped.
    pub(crate) fn lock(&self, name: &str) -> Result<Flock<File>> {
        let path = self.root.join(format!("{}.lock", name.replace('/', "-")));
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .or_else(|(file, error)| match error {
                Errno::EWOULDBLOCK => {
                    eprintln!("lab: waiting for another process that fetches {name}");
                    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error)
                }
                _ => Err(error),
            })
            .with_context(|| format!("locking {}", path.display()))
    }
}

fn user_cache(xdg: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let xdg = xdg.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.filter(|home| home.is_absolute());
    Some(xdg.or_else(|| Some(home?.join(".cache")))?.join("bareverbs"))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => bail!("removing {}: {error}", folder.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> Cache {
        let root = std::env::temp_dir().join(format!("bareverbs-cache-test-{}-{name}", std::process::id()));
        remove(&root).unwrap();
        Cache::at(root).unwrap()
    }

    #[test]
    fn cache_folder_follows_xdg_then_home() {
        let home = || Some(PathBuf::from("/home/u"));
        assert_eq!(user_cache(Some("/c".into()), home()), Some("/c/bareverbs".into()));
        assert_eq!(user_cache(None, home()), Some("/home/u/.cache/bareverbs".into()));
        assert_eq!(user_cache(Some("relative".into()), home()), Some("/home/u/.cache/bareverbs".into()));
        assert_eq!(user_cache(None, None), None);
    }

    #[test]
    fn cache_set_is_filled_once() {
        let cache = scratch("once");
        let fill = |folder: &Path| {
            fs::write(folder.join("file"), "x")?;
            Ok("1.0".to_owned())
        };
        let (folder, version) = cache.ensure("set", false, fill).unwrap();
        assert_eq!((version.as_str(), folder.join("file").exists()), ("1.0", true));
        let (_, version) = cache.ensure("set", false, |_| -> Result<String> { bail!("not again") }).unwrap();
        assert_eq!(version, "1.0");
        remove(cache.root()).unwrap();
    }

    #[test]
    fn partially_filled_set_is_retried() {
        let cache = scratch("halfway");
        let failed: Result<(PathBuf, String)> = cache.ensure("set", false, |folder| {
            fs::write(folder.join("half"), "x")?;
            bail!("interrupted")
        });
        assert!(failed.is_err());
        assert!(cache.get::<String>("set").is_none());
        let (folder, _) = cache.ensure("set", false, |_| Ok("2".to_owned())).unwrap();
        assert!(!folder.join("half").exists());
        remove(cache.root()).unwrap();
    }

    #[test]
    fn failed_refresh_keeps_cached_set() {
        let cache = scratch("refresh");
        cache.ensure("set", false, |_| Ok("1".to_owned())).unwrap();
        assert!(cache.ensure("set", true, |_| -> Result<String> { bail!("offline") }).is_err());
        assert_eq!(cache.get::<String>("set").unwrap().1, "1");
        remove(cache.root()).unwrap();
    }
}
