//! Circles between the modules of a folder.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Imports, ModulePath, Stated};

/// The modules of all folders. An edge leads to a module of the same folder, with the imports that it
/// stands for: those between the files of the two modules.
type Graph = BTreeMap<ModulePath, BTreeMap<ModulePath, Imports>>;

/// Modules of one folder that import each other in a circle.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Circle {
    pub(super) modules: BTreeSet<ModulePath>,
    /// Without these imports there is no circle.
    pub(super) up: Imports,
}

/// What the imports of a crate amount to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) circles: Vec<Circle>,
    /// The imports that run up, with a reason in the page of their file.
    pub(super) stated: usize,
    /// The reasons for which no import runs up.
    pub(super) needless: Vec<Stated>,
}

impl Verdict {
    pub(super) fn of(imports: &Imports, stated: &[Stated]) -> Self {
        let mut rest = imports.clone();
        rest.retain(|(from, to), _| !stated.iter().any(|reason| reason.allows(from, to)));
        let graph = graph(&rest);
        let mut verdict = Self { circles: circles(&graph), ..Self::default() };
        for reason in stated {
            let runs_up = |(from, to): &&(ModulePath, ModulePath)| {
                let ends = beside(from, to).filter(|_| reason.allows(from, to));
                ends.is_some_and(|(from, to)| reachable(&graph, &to).contains(&from))
            };
            match imports.keys().filter(runs_up).count() {
                0 => verdict.needless.push(reason.clone()),
                count => verdict.stated += count,
            }
        }
        verdict
    }
}

/// The modules of one folder that contain the two files. None if one file is in the other's folder.
fn beside(from: &ModulePath, to: &ModulePath) -> Option<(ModulePath, ModulePath)> {
    let common = from.iter().zip(to).take_while(|(from, to)| from == to).count();
    Some((from.get(..=common)?.to_vec(), to.get(..=common)?.to_vec()))
}

fn graph(imports: &Imports) -> Graph {
    let mut graph = Graph::new();
    for ((from, to), names) in imports {
        let Some((above, below)) = beside(from, to) else { continue };
        graph.entry(below.clone()).or_default();
        let edge = graph.entry(above).or_default().entry(below).or_default();
        edge.insert((from.clone(), to.clone()), names.clone());
    }
    graph
}

/// The modules that a module imports, directly or not.
fn reachable<'a>(graph: &'a Graph, from: &ModulePath) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut waiting: Vec<_> = graph.get(from).into_iter().flat_map(BTreeMap::keys).collect();
    while let Some(module) = waiting.pop() {
        if reached.insert(module) {
            waiting.extend(graph[module].keys());
        }
    }
    reached
}

fn circles(graph: &Graph) -> Vec<Circle> {
    let mut circles: Vec<Circle> = Vec::new();
    for module in graph.keys() {
        if circles.iter().any(|circle| circle.modules.contains(module)) {
            continue;
        }
        let below = reachable(graph, module);
        if below.contains(module) {
            let modules = below.into_iter().filter(|other| reachable(graph, other).contains(module));
            let modules = modules.cloned().collect();
            circles.push(Circle { up: upward(graph, &modules), modules });
        }
    }
    circles
}

/// The imports of a circle that run up, if its modules stand in the order with few of these: above
/// stands what imports the most names and is imported the least.
fn upward(graph: &Graph, modules: &BTreeSet<ModulePath>) -> Imports {
    let names = |from: &ModulePath, to: &ModulePath| {
        graph[from].get(to).map_or(0, |imports| imports.values().map(BTreeSet::len).sum::<usize>()) as i64
    };
    let mut left: Vec<_> = modules.iter().collect();
    let mut up = Imports::new();
    while !left.is_empty() {
        let balance =
            |module| left.iter().map(|other| names(other, module) - names(module, other)).sum::<i64>();
        let top = (0..left.len()).min_by_key(|&at| balance(left[at])).expect("there are modules left");
        let top = left.swap_remove(top);
        for other in &left {
            up.extend(graph[*other].get(top).cloned().unwrap_or_default());
        }
    }
    up
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ModulePath {
        text.split('/').map(str::to_owned).collect()
    }

    fn imports(list: &[(&str, &str)]) -> Imports {
        list.iter().map(|(from, to)| ((path(from), path(to)), BTreeSet::from(["Name".to_owned()]))).collect()
    }

    /// The modules of each circle and its imports that run up.
    fn found(list: &[(&str, &str)]) -> Vec<(Vec<String>, usize)> {
        let circles = Verdict::of(&imports(list), &[]).circles.into_iter();
        circles
            .map(|circle| (circle.modules.iter().map(|path| path.join("/")).collect(), circle.up.len()))
            .collect()
    }

    #[test]
    fn imports_in_one_direction_are_no_circle() {
        assert_eq!(found(&[("a", "b"), ("b", "c"), ("a", "c"), ("a/x", "b/y")]), []);
    }

    #[test]
    fn file_and_its_folder_import_each_other() {
        assert_eq!(found(&[("a", "a/x"), ("a/x", "a"), ("a/x/deep", "a"), ("a", "a/x/deep")]), []);
    }

    #[test]
    fn circle_is_found_through_the_files_of_folders() {
        let two = ["a".to_owned(), "b".to_owned()].to_vec();
        assert_eq!(found(&[("a/x", "b"), ("b/y", "a/z")]), [(two, 1)]);
        let inner = ["a/x".to_owned(), "a/y".to_owned()].to_vec();
        assert_eq!(found(&[("a/x", "a/y"), ("a/y/deep", "a/x"), ("b", "a/x")]), [(inner, 1)]);
    }

    #[test]
    fn circles_apart_are_counted_apart() {
        let list = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "c")];
        let circles: Vec<_> = found(&list).into_iter().map(|(modules, up)| (modules.len(), up)).collect();
        assert_eq!(circles, [(2, 1), (3, 1)]);
    }

    #[test]
    fn imports_up_are_the_few_ones() {
        let list = [("a", "b"), ("a/x", "b"), ("a", "c"), ("b", "c"), ("c", "a/x")];
        let circle = Verdict::of(&imports(&list), &[]).circles.pop().unwrap();
        assert_eq!(circle.up, imports(&[("c", "a/x")]));
    }

    #[test]
    fn stated_import_makes_no_circle() {
        let list = imports(&[("a", "b/x"), ("b", "a/y"), ("b", "c")]);
        let reason = |from: &str, to: &str| Stated { from: path(from), to: path(to) };
        let verdict = Verdict::of(&list, &[reason("b", "a")]);
        assert_eq!((verdict.circles, verdict.stated, verdict.needless), (vec![], 1, vec![]));
        let verdict = Verdict::of(&list, &[reason("b", "a"), reason("b", "c"), reason("c", "a")]);
        assert_eq!((verdict.stated, verdict.needless), (1, vec![reason("b", "c"), reason("c", "a")]));
        assert_eq!(Verdict::of(&list, &[reason("b/x", "a")]).circles.len(), 1);
    }
}
