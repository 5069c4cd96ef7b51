//! What the example of a model family shows without a model: the kernels of its block.
//!
//! In: the names of a built-in block and of the example. Out: a table of the kernels that run per token in each block,
//! with the bytes they read and the barriers that end them, and how to run a model.
//! With arguments an example is `fusebox run`; nothing is downloaded either way.

use fusebox::blocks;
use fusebox::text::amount::bytes;
use fusebox::text::table::table;
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::tensor::sym::Sym;

use crate::terminal::output;

/// Shows the kernels of a block.
pub(crate) fn show(name: &str, example: &str) -> Result<(), String> {
    let options = Options::from_env()?;
    let config = blocks::named(name).ok_or_else(|| format!("unknown block `{name}`"))?;
    let graph = blocks::block(&config, &Sym::from(1)).map_err(|error| error.to_string())?;
    let compiled = compile(&graph, &options).map_err(|error| error.to_string())?;
    let heads = ["kernel", "reads", "barrier after it"].map(str::to_owned).to_vec();
    let rows = compiled
        .story
        .launches()
        .map(|kernel| vec![kernel.name.clone(), bytes(kernel.bytes_read), kernel.barriers.join(", ")]);
    let rows: Vec<Vec<String>> = [heads].into_iter().chain(rows).collect();
    output::print(&format!(
        "Kernels per token in each of the {} blocks of {name}, compiled for {}:\n\n{}\n\
         This needs no weights. To run a model of your own:\n  \
         cargo run --release --example {example} -- --model PATH -p TEXT\n",
        config.n_layers(),
        options.target,
        table("lrl", "  ", &rows)
    ));
    Ok(())
}
