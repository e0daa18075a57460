//! Images are built from recipes, and disks made from them boot.

mod bench;
mod boot;
mod build;
mod unpack;
mod walls;
