//! Tests of the documents: recipes are extracted and run or parsed, links lead somewhere.

pub mod blocks;
mod ci;
mod fencing;
mod install;
mod jobs;
mod links;
mod operations;
mod readme;
mod recipes;
mod reliability;
mod sandbox;
