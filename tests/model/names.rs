//! Nodes, writers and sharers differ in their names only: what holds under one naming holds under all.

/// The least of what becomes of something when its clients, the first `writers` of them among themselves and the
/// others among themselves, swap names; but only in those ways that put the clients in order, as most naming is saved
/// by that, and for the same thing under other names they lead to the same.
pub fn least_under_all_names<T: Ord, C: Ord, const N: usize>(
    clients: &[C; N],
    writers: usize,
    renamed: impl Fn(&[usize; N]) -> T,
) -> T {
    let in_order = |names: &[usize; N]| {
        let writers_stay = names[..writers].iter().all(|&name| name < writers);
        let ordered =
            |a, b| (a < writers) != (b < writers) || clients[a] >= clients[b] || names[a] < names[b];
        writers_stay && (0..N).all(|a| (0..N).all(|b| ordered(a, b)))
    };
    let mut names: [usize; N] = std::array::from_fn(|name| name);
    let mut least = None;
    loop {
        if in_order(&names) {
            let next = renamed(&names);
            least = Some(match least {
                Some(least) if least < next => least,
                _ => next,
            });
        }
        if !next_permutation(&mut names) {
            return least.expect("an order");
        }
    }
}

/// The next one in lexicographic order, if there is one.
fn next_permutation(names: &mut [usize]) -> bool {
    let Some(rise) = names.windows(2).rposition(|pair| pair[0] < pair[1]) else { return false };
    let larger = names.iter().rposition(|&name| name > names[rise]).expect("the one after the rise");
    names.swap(rise, larger);
    names[rise + 1..].reverse();
    true
}
