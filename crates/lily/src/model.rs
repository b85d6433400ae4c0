//! The model argument: a path, or `org/name[@revision]` in the caches that other programs fill.
//!
//! Looks in the Hugging Face cache and in LM Studio's folder and never downloads anything; what is not there is an error
//! that says where it was looked for and how to fetch it.

use crate::failure::Failure;
use std::fmt;
use std::path::{Path, PathBuf};

/// The name of the model in the box.
pub const NANO: &str = "lily-nano";

/// Which model a command works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Model {
    /// The one inside the binary.
    Nano,
    /// A directory.
    Directory {
        /// Its path.
        path: PathBuf,
        /// Repository and commit, where it was found in a cache.
        origin: Option<String>,
    },
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Model::Nano => f.write_str(NANO),
            Model::Directory { origin: Some(origin), .. } => f.write_str(origin),
            Model::Directory { path, origin: None } => write!(f, "{}", path.display()),
        }
    }
}

impl Model {
    /// A short name without slashes: that of the repository or of the directory.
    pub fn short_name(&self) -> String {
        let name = match self {
            Model::Nano => return NANO.to_owned(),
            Model::Directory { origin: Some(origin), .. } => {
                let repository = origin.split(['@', ' ']).next().unwrap_or_default();
                repository.rsplit('/').next().unwrap_or_default().to_owned()
            }
            Model::Directory { path, origin: None } => {
                let path = path.canonicalize().unwrap_or_else(|_| path.clone());
                path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
            }
        };
        if name.is_empty() { "model".to_owned() } else { name }
    }
}

/// Where models are kept on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caches {
    /// The Hugging Face cache; `None` without a home directory.
    pub hugging_face: Option<PathBuf>,
    /// LM Studio's models.
    pub lm_studio: Option<PathBuf>,
}

impl Caches {
    /// By the conventions of those who fill them; `var` looks an environment variable up.
    pub fn new(var: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name| var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let home = set("HOME");
        let cache = || set("XDG_CACHE_HOME").or_else(|| Some(home.as_ref()?.join(".cache")));
        let hugging_face = set("HF_HUB_CACHE")
            .or_else(|| Some(set("HF_HOME")?.join("hub")))
            .or_else(|| Some(cache()?.join("huggingface/hub")));
        Self { hugging_face, lm_studio: home.as_ref().map(|home| home.join(".lmstudio/models")) }
    }

    /// Those of this process.
    pub fn of_this_machine() -> Self {
        Self::new(|name| std::env::var(name).ok())
    }

    /// Finds the model that `argument` names; none is the model in the box.
    pub fn resolve(&self, argument: Option<&str>) -> Result<Model, Failure> {
        let Some(argument) = argument else { return Ok(Model::Nano) };
        let path = Path::new(argument);
        if path.exists() {
            return Ok(Model::Directory { path: path.to_owned(), origin: None });
        }
        if argument == NANO {
            return Ok(Model::Nano);
        }
        let Some(name) = RepositoryName::parse(argument) else {
            return Err(Failure::model(format_args!(
                "model {argument:?}: expected the directory of a checkpoint or a name like org/name, found no such \
                 directory; check the path, or leave --model out for the small model in the box"
            )));
        };
        let mut looked = Vec::new();
        if let Some(cache) = &self.hugging_face {
            if let Some(model) = name.in_hugging_face(cache)? {
                return Ok(model);
            }
            looked.push(cache.join(name.cache_folder()));
        }
        if let (Some(folder), None) = (&self.lm_studio, name.revision) {
            let path = folder.join(name.repository());
            if path.is_dir() {
                return Ok(Model::Directory { origin: Some(format!("{} (LM Studio)", name.repository())), path });
            }
            looked.push(path);
        }
        let looked: Vec<String> = looked.iter().map(|p| format!("\n  {}", p.display())).collect();
        let revision = name.revision.map_or(String::new(), |r| format!(" --revision {r}"));
        Err(Failure::model(format_args!(
            "model {argument:?}: expected in a cache on this machine, found in none of:{}\nlily does not download; fetch \
             it with `hf download {}{revision}` (pip install huggingface_hub) and run this again",
            looked.concat(),
            name.repository()
        )))
    }
}

/// `org/name[@revision]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RepositoryName<'a> {
    org: &'a str,
    name: &'a str,
    revision: Option<&'a str>,
}

impl<'a> RepositoryName<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (repository, revision) = match text.split_once('@') {
            Some((repository, revision)) => (repository, Some(revision)),
            None => (text, None),
        };
        let (org, name) = repository.split_once('/')?;
        let plain = |part: &str| {
            let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && part.chars().all(letter) && !part.starts_with('.')
        };
        // A revision may be a branch with slashes, but never a way out of the cache.
        let sound = |r: &str| !r.starts_with('/') && r.split('/').all(plain);
        (plain(org) && plain(name) && revision.is_none_or(sound)).then_some(Self { org, name, revision })
    }

    fn repository(&self) -> String {
        format!("{}/{}", self.org, self.name)
    }

    fn cache_folder(&self) -> String {
        format!("models--{}--{}", self.org, self.name)
    }

    /// The snapshot in a Hugging Face cache: by branch or tag (`main` if none is named), or by commit.
    fn in_hugging_face(&self, cache: &Path) -> Result<Option<Model>, Failure> {
        let folder = cache.join(self.cache_folder());
        let snapshots = folder.join("snapshots");
        let revision = self.revision.unwrap_or("main");
        let reference = folder.join("refs").join(revision);
        let commit = match std::fs::read_to_string(&reference) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => revision.to_owned(),
        };
        let path = snapshots.join(&commit);
        if !commit.is_empty() && path.is_dir() {
            let origin = Some(format!("{}@{commit}", self.repository()));
            return Ok(Some(Model::Directory { path, origin }));
        }
        let others: Vec<String> = std::fs::read_dir(&snapshots)
            .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        if others.is_empty() {
            return Ok(None);
        }
        Err(Failure::model(format_args!(
            "model {}: expected revision {revision} in {}, found only {}; name one of these with @, or fetch it with \
             `hf download {} --revision {revision}`",
            self.repository(),
            snapshots.display(),
            others.join(", "),
            self.repository()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches(vars: &[(&str, &str)]) -> Caches {
        Caches::new(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn the_cache_is_where_the_hub_puts_it() {
        let check = |vars: &[(&str, &str)], expect: &str| {
            assert_eq!(caches(vars).hugging_face, Some(PathBuf::from(expect)), "{vars:?}");
        };
        check(&[("HOME", "/h")], "/h/.cache/huggingface/hub");
        check(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub");
        check(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/f")], "/f/hub");
        check(&[("HOME", "/h"), ("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")], "/c");
        check(&[("HOME", "/h"), ("HF_HOME", "")], "/h/.cache/huggingface/hub");
        assert_eq!(caches(&[]).hugging_face, None);
    }

    #[test]
    fn short_names_have_no_slashes() {
        let named = |path: &str, origin: Option<&str>| {
            Model::Directory { path: path.into(), origin: origin.map(str::to_owned) }.short_name()
        };
        assert_eq!(Model::Nano.short_name(), "lily-nano");
        assert_eq!(named("/x/snapshots/c1", Some("org/name-4bit@c1")), "name-4bit");
        assert_eq!(named("/x/org/name", Some("org/name (LM Studio)")), "name");
        assert_eq!(named("/x/my model", None), "my model");
        assert_eq!(named("/", None), "model");
    }

    #[test]
    fn names_are_told_from_paths() {
        let parse = RepositoryName::parse;
        assert_eq!(parse("a/b"), Some(RepositoryName { org: "a", name: "b", revision: None }));
        assert_eq!(parse("a/b-1.5@refs/pr/1").unwrap().revision, Some("refs/pr/1"));
        for path in ["a", "./a/b", "/a/b", "a/b/c", "../b", "a/..", "a/b@../../x", "a/b@/x", "a/b@", "~/b c"] {
            assert_eq!(parse(path), None, "{path}");
        }
    }

    #[test]
    fn snapshots_are_found_by_branch_tag_and_commit() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models--org--name");
        for (reference, commit) in [("main", "c1"), ("refs/pr/1", "c2")] {
            let file = folder.join("refs").join(reference);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("{commit}\n")).unwrap();
            std::fs::create_dir_all(folder.join("snapshots").join(commit)).unwrap();
        }
        let caches = Caches { hugging_face: Some(cache.path().into()), lm_studio: None };
        for (argument, commit) in [("org/name", "c1"), ("org/name@refs/pr/1", "c2"), ("org/name@c2", "c2")] {
            let model = caches.resolve(Some(argument)).unwrap();
            assert_eq!(model.to_string(), format!("org/name@{commit}"));
            let Model::Directory { path, .. } = model else { panic!("{argument}") };
            assert_eq!(path, folder.join("snapshots").join(commit));
        }
        let failure = caches.resolve(Some("org/name@v2")).unwrap_err();
        assert!(failure.message().contains("revision v2") && failure.message().contains("c1"), "{failure:?}");
    }

    #[test]
    fn lm_studio_models_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("org/name")).unwrap();
        let caches = Caches { hugging_face: None, lm_studio: Some(folder.path().into()) };
        assert_eq!(caches.resolve(Some("org/name")).unwrap().to_string(), "org/name (LM Studio)");
    }

    #[test]
    fn what_is_missing_is_named_with_the_way_to_get_it() {
        let empty = tempfile::tempdir().unwrap();
        let caches = Caches { hugging_face: Some(empty.path().into()), lm_studio: None };
        let failure = caches.resolve(Some("org/name@v1")).unwrap_err();
        assert!(failure.message().contains("hf download org/name --revision v1"), "{failure:?}");
        assert!(failure.message().contains("models--org--name"), "{failure:?}");
        let failure = caches.resolve(Some("no-such-folder")).unwrap_err();
        assert!(failure.message().contains("no such directory"), "{failure:?}");
        assert_eq!(caches.resolve(None).unwrap(), Model::Nano);
        assert_eq!(caches.resolve(Some("lily-nano")).unwrap(), Model::Nano);
    }
}
