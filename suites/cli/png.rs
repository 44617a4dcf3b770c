//! Drawings as pictures of points, for programs that show no SVG. Letters come from the fonts of the system: nothing is
//! drawn without them, since a plot without words says nothing.

#[cfg(feature = "png")]
pub use painter::Painter;

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PngError {
    /// The renderer is a feature of the build.
    #[error(
        "this zbench was built without PNG; build it with cargo build --release --features png, or take the SVG files, which a browser shows"
    )]
    NotBuilt,
    /// Letters cannot be drawn.
    #[error(
        "this system has no fonts, so a PNG would have no letters; install some (apt-get install fonts-dejavu-core), or take the SVG files, which a browser shows"
    )]
    NoFonts,
    /// Our own drawing is not understood: an error of this program.
    #[error("the drawing {name} cannot be read as SVG: {reason}")]
    Drawing {
        /// Which one.
        name: String,
        /// What the reader says.
        reason: String,
    },
    /// The picture does not fit into memory, or is empty.
    #[error("the drawing {0} cannot be made a picture: its size is {1} x {2}")]
    Size(String, u32, u32),
}

/// The painter of a build without the feature: there is none.
#[cfg(not(feature = "png"))]
pub struct Painter(std::convert::Infallible);

#[cfg(not(feature = "png"))]
impl Painter {
    /// # Errors
    /// Always: the feature is not built in.
    pub fn new() -> Result<Self, PngError> {
        Err(PngError::NotBuilt)
    }

    /// Never called.
    ///
    /// # Errors
    /// None, since it is never called.
    pub fn paint(&self, _: &str, _: &str) -> Result<Vec<u8>, PngError> {
        match self.0 {}
    }
}

#[cfg(feature = "png")]
mod painter {
    use super::PngError;
    use resvg::tiny_skia::{Pixmap, Transform};
    use resvg::usvg::{Options, Tree, fontdb};
    use std::sync::Arc;

    /// Points for each unit of the drawing: sharp on today's screens and on paper.
    const SCALE: f32 = 2.0;
    /// Fonts that are looked for first, as the drawings name them.
    const FAMILIES: [&str; 4] = ["Liberation Sans", "DejaVu Sans", "Arial", "Noto Sans"];

    /// Draws SVG with the fonts of this system.
    pub struct Painter {
        options: Options<'static>,
    }

    impl Painter {
        /// Reads the system's fonts.
        ///
        /// # Errors
        /// There are none.
        pub fn new() -> Result<Self, PngError> {
            let mut fonts = fontdb::Database::new();
            fonts.load_system_fonts();
            let has = |family: &&&str| fonts.faces().any(|face| face.families.iter().any(|(name, _)| name == **family));
            let known = FAMILIES.iter().find(has).map(|family| family.to_string());
            let any = || fonts.faces().find_map(|face| face.families.first().map(|(name, _)| name.clone()));
            let family = known.or_else(any).ok_or(PngError::NoFonts)?;
            fonts.set_sans_serif_family(family.clone());
            Ok(Self { options: Options { font_family: family, fontdb: Arc::new(fonts), ..Options::default() } })
        }

        /// A drawing as a PNG file's bytes.
        ///
        /// # Errors
        /// The drawing is no SVG, or has no size.
        pub fn paint(&self, name: &str, svg: &str) -> Result<Vec<u8>, PngError> {
            let unreadable = |reason: String| PngError::Drawing { name: name.to_string(), reason };
            let tree = Tree::from_str(svg, &self.options).map_err(|error| unreadable(error.to_string()))?;
            let size = tree.size().to_int_size();
            let (width, height) = ((size.width() as f32 * SCALE) as u32, (size.height() as f32 * SCALE) as u32);
            let mut picture =
                Pixmap::new(width, height).ok_or_else(|| PngError::Size(name.to_string(), width, height))?;
            resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut picture.as_mut());
            picture.encode_png().map_err(|error| unreadable(error.to_string()))
        }
    }
}

#[cfg(all(test, feature = "png"))]
mod tests {
    use super::*;

    /// Two drawings that differ in a word differ as pictures: letters are really drawn.
    #[test]
    fn letters_are_drawn() {
        let painter = Painter::new().unwrap_or_else(|error| panic!("{error}"));
        let drawing = |word: &str| {
            format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"80\" height=\"20\"><style>text{{font:12px system-ui,\"Liberation Sans\",\
                 sans-serif}}</style><text x=\"2\" y=\"14\">{word}</text></svg>"
            )
        };
        let picture = |word: &str| painter.paint("test", &drawing(word)).unwrap();
        assert_ne!(picture("zero"), picture(""), "a word leaves marks");
        assert_ne!(picture("zero"), picture("zebu"));
        assert_eq!(picture("zero"), picture("zero"));
        assert!(picture("zero").starts_with(b"\x89PNG\r\n"));
        assert!(matches!(painter.paint("test", "<p>"), Err(PngError::Drawing { .. })));
    }
}
