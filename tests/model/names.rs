//! Symmetry: servers, writers and sharers differ only in their names, so a property that holds
//! under one naming holds under all.

/// The smallest result of `renamed` when clients swap names: the first `writers` among themselves,
/// and the others among themselves. Only names that sort the clients are tried: these are few, and
/// the result does not depend on the names before.
pub fn least_under_all_names<T: Ord, C: Ord, const N: usize>(
    clients: &[C; N],
    writers: usize,
    mut renamed: impl FnMut(&[usize; N]) -> T,
) -> T {
    let mut least = None;
    let mut keep_the_least = |names: &[usize; N]| {
        let next = renamed(names);
        if least.as_ref().is_none_or(|least| next < *least) {
            least = Some(next);
        }
    };
    name_from(0, &mut [0; N], &mut [false; N], clients, writers, &mut keep_the_least);
    least.expect("an order")
}

/// Assigns the name `next` and all after it to the clients that have none yet, in every sorted
/// order.
fn name_from<C: Ord, const N: usize>(
    next: usize,
    names: &mut [usize; N],
    named: &mut [bool; N],
    clients: &[C; N],
    writers: usize,
    visit: &mut impl FnMut(&[usize; N]),
) {
    if next == N {
        return visit(names);
    }
    let alike = if next < writers { 0..writers } else { writers..N };
    let least = alike.clone().filter(|&client| !named[client]).map(|client| &clients[client]).min();
    for client in alike {
        if !named[client] && Some(&clients[client]) == least {
            names[client] = next;
            named[client] = true;
            name_from(next + 1, names, named, clients, writers, visit);
            named[client] = false;
        }
    }
}
