//! Nodes and clients are told apart by name only: what holds for one naming holds for all.

/// Every way to give `N` things each other's names.
pub fn permutations<const N: usize>() -> Vec<[usize; N]> {
    let mut all = vec![];
    let mut names = [0; N];
    fn extend<const N: usize>(at: usize, names: &mut [usize; N], all: &mut Vec<[usize; N]>) {
        if at == N {
            all.push(*names);
            return;
        }
        for name in 0..N {
            if !names[..at].contains(&name) {
                names[at] = name;
                extend(at + 1, names, all);
            }
        }
    }
    extend(0, &mut names, &mut all);
    all
}
