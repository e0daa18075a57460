//! The command line of `hoist-image`: subcommands, options and their help texts. No behaviour.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Debug, Parser)]
#[command(
    name = "hoist-image",
    version,
    about = "Builds images of operating systems from documents",
    long_about = "hoist-image builds images of operating systems from documents.\n\nNothing is \
        mounted, and the same input gives the same bytes. `hoist image build` runs this program \
        and can bring what it made to a controller.",
    after_help = "Examples:\n  hoist-image build -f tiny.yaml\n  hoist-image build -f debian.yaml \
        --out /srv/images/debian\n  hoist-image schema > image.schema.json\n\nExit codes: 0 done, \
        1 error, 2 wrong usage or invalid document, 3 refused by a rule, 20 dry run: something \
        would be made.",
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// How to print: for people, or json
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Output,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    #[default]
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build an image
    ///
    /// Makes a directory with everything that the document wants, and an index of it. The directory
    /// appears when all is there; an image that was in it before is replaced.
    #[command(after_help = "Examples:\n  hoist-image build -f tiny.yaml\n  \
        hoist-image build -f tiny.yaml --out build/tiny -o json\n  \
        hoist-image build -f tiny.yaml --dry-run")]
    Build(BuildArgs),
    /// Unpack an image into a file
    ///
    /// Understands zstd, xz and gzip. An image that was built here is verified with the manifest and
    /// the index beside it. Runs of zeros become holes of the file.
    #[command(after_help = "Examples:\n  hoist-image unpack tiny.image/root.ext4.zst\n  \
        hoist-image unpack tiny.image/disk.img.zst --out /srv/vm/tiny.img")]
    Unpack(UnpackArgs),
    /// Print the JSON Schema of the document
    #[command(after_help = "Examples:\n  hoist-image schema > image.schema.json")]
    Schema,
}

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// The document
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The directory to make; `NAME.image` where the document is, if left out
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Where plug-ins are
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/hoist/plugins")]
    pub(crate) plugins: PathBuf,
    /// Check everything and show the files that would be made; exits with 20
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UnpackArgs {
    /// The packed image
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The file to write; FILE without its suffix, if left out
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// The chunk manifest; `NAME.manifest.json` beside the image, if left out
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
}
