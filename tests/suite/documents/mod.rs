//! What the documents say is tried: recipes are extracted and run or parsed, links lead somewhere.

pub mod blocks;
mod ci;
mod desk;
mod fencing;
mod jobs;
mod links;
mod operations;
mod readme;
