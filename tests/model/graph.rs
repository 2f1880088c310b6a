//! All states of a model and the steps between them, to check that it can and will always finish.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::Model;

/// A set of kinds of steps: one bit for each.
type Kinds = u64;

pub struct Graph<S, A> {
    states: Vec<S>,
    /// How each state was first reached.
    from: Vec<Option<(usize, A)>>,
    next: Vec<Vec<Step>>,
}

#[derive(Clone, Copy)]
struct Step {
    to: u32,
    kind: u8,
}

impl<S: Copy + Eq + Hash, A: Copy + Debug> Graph<S, A> {
    /// `kind`: steps of the same kind can be delayed, but not forever; 0 = a step that need not
    /// happen.
    pub fn of<M>(model: &M, kind: impl Fn(&A) -> u8) -> Self
    where
        M: Model<State = S, Action = A> + Debug,
    {
        let begun = Instant::now();
        let mut graph = Graph { states: model.init_states(), from: vec![None], next: vec![] };
        let mut index: HashMap<S, u32> = graph.states.iter().copied().zip(0..).collect();
        let mut actions = vec![];
        while graph.next.len() < graph.states.len() {
            let at = graph.next.len();
            let state = graph.states[at];
            let mut next = vec![];
            model.actions(&state, &mut actions);
            for action in actions.drain(..) {
                let Some(after) = model.next_state(&state, action) else { continue };
                let to = *index.entry(after).or_insert_with(|| {
                    graph.states.push(after);
                    graph.from.push(Some((at, action)));
                    graph.states.len() as u32 - 1
                });
                next.push(Step { to, kind: kind(&action) });
            }
            graph.next.push(next);
        }
        let steps = graph.next.iter().map(Vec::len).sum::<usize>();
        println!(
            "{} states, {steps} steps, {:.1?}: all ways of {model:?}",
            graph.states.len(),
            begun.elapsed()
        );
        graph
    }

    /// The first state from which no `good` state can be reached.
    pub fn dead_end(&self, good: impl Fn(&S) -> bool) -> Option<usize> {
        let mut before = vec![vec![]; self.states.len()];
        for (at, next) in self.next.iter().enumerate() {
            next.iter().for_each(|step| before[step.to as usize].push(at as u32));
        }
        let mut can: Vec<bool> = self.states.iter().map(good).collect();
        let mut todo: Vec<usize> = (0..can.len()).filter(|&at| can[at]).collect();
        while let Some(at) = todo.pop() {
            for &earlier in &before[at] {
                if !std::mem::replace(&mut can[earlier as usize], true) {
                    todo.push(earlier as usize);
                }
            }
        }
        can.iter().position(|can| !can)
    }

    /// A circle of states that a run may never leave, although no step that is always possible is
    /// delayed forever. A circle is unfair, and does not count, if some kind of step is possible in
    /// all of its states and always leads out of it.
    pub fn fair_circle(&self) -> Option<Vec<usize>> {
        let circles = self.circles();
        let unfair = circles.iter().filter(|circle| self.leads_out_of(circle) != 0).count();
        println!("    {} circles, {unfair} of which last only while a step is delayed", circles.len());
        circles.into_iter().find(|circle| self.leads_out_of(circle) == 0)
    }

    fn leads_out_of(&self, circle: &[usize]) -> Kinds {
        let inside: std::collections::HashSet<u32> = circle.iter().map(|&at| at as u32).collect();
        circle.iter().fold(!1, |kinds, &at| {
            let can = self.next[at].iter().fold(0, |can, step| can | 1 << step.kind);
            let stays = self.next[at].iter().filter(|step| inside.contains(&step.to));
            kinds & can & !stays.fold(0, |stays, step| stays | 1 << step.kind)
        })
    }

    /// The strongly connected components of more than one state (Tarjan, without recursion).
    fn circles(&self) -> Vec<Vec<usize>> {
        const NEW: u32 = u32::MAX;
        let mut number = vec![NEW; self.states.len()];
        let mut low = number.clone();
        let mut open = vec![false; self.states.len()];
        let (mut stack, mut calls, mut count) = (vec![], vec![(0, 0)], 0);
        let mut circles = vec![];
        while let Some((at, tried)) = calls.pop() {
            if tried == 0 {
                (number[at], low[at], open[at]) = (count, count, true);
                count += 1;
                stack.push(at);
            }
            if tried > 0 {
                let child = self.next[at][tried - 1].to as usize;
                if open[child] {
                    low[at] = low[at].min(low[child]);
                }
            }
            if let Some(step) = self.next[at].get(tried) {
                calls.push((at, tried + 1));
                if number[step.to as usize] == NEW {
                    calls.push((step.to as usize, 0));
                }
                continue;
            }
            if low[at] == number[at] {
                let begin = stack.iter().rposition(|&member| member == at).expect("itself");
                let part = stack.split_off(begin);
                part.iter().for_each(|&member| open[member] = false);
                if part.len() > 1 {
                    circles.push(part);
                }
            }
        }
        circles
    }

    /// Prints how a state was reached, one action on each line.
    pub fn print_way_to(&self, mut at: usize) {
        let mut way = vec![];
        while let Some((from, action)) = self.from[at] {
            way.push(action);
            at = from;
        }
        way.iter().rev().for_each(|action| println!("    {action:?}"));
    }
}
