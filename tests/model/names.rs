//! Nodes and clients differ in their names only: what holds under one naming holds under all.

/// The least of what becomes of something when `N` clients swap names in every possible way.
pub fn least_under_all_names<T: Ord, const N: usize>(renamed: impl Fn(&[usize; N]) -> T) -> T {
    let mut names: [usize; N] = std::array::from_fn(|name| name);
    let mut least = renamed(&names);
    while next_permutation(&mut names) {
        least = least.min(renamed(&names));
    }
    least
}

/// The next one in lexicographic order, if there is one.
fn next_permutation(names: &mut [usize]) -> bool {
    let Some(rise) = names.windows(2).rposition(|pair| pair[0] < pair[1]) else { return false };
    let larger = names.iter().rposition(|&name| name > names[rise]).expect("the one after the rise");
    names.swap(rise, larger);
    names[rise + 1..].reverse();
    true
}
