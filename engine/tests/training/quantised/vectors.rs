//! What bitsandbytes makes of given tensors: tests/fixtures/nf4/make.py.

use crate::training::families::single;
use crate::training::support::*;
use zbench_kernels::*;
use zbench_kernels_testing::{ByName, Reference};

struct Vectors(Tensors);

impl Vectors {
    fn open() -> Vectors {
        Vectors(single(&fixture("../nf4/vectors.safetensors")))
    }

    fn get(&self, name: &str) -> &[f32] {
        &self.0.iter().find(|(own, _)| own == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    fn codes(&self, name: &str) -> Vec<u8> {
        self.get(name).iter().map(|x| *x as u8).collect()
    }
}

/// Each with its columns.
const TENSORS: [(&str, usize); 9] = [
    ("ragged", 129),
    ("whole", 256),
    ("outliers", 96),
    ("zeros", 64),
    ("halves", 64),
    ("bf16", 50),
    ("short", 37),
    ("one", 1),
    ("extremes", 64),
];

pub fn pack(kernels: &dyn Kernels, matrix: &Packed, x: &[f32]) -> (Vec<i8>, Vec<f32>) {
    let (mut codes, mut scales) = (vec![0i8; matrix.codes_len(x.len())], vec![0f32; matrix.blocks()]);
    kernels.pack(matrix, View::of(x), ViewMut::of(&mut codes), ViewMut::of(&mut scales)).unwrap();
    (codes, scales)
}

/// What a record of these stands for.
fn unpack(kernels: &dyn Kernels, matrix: Packed, codes: &[u8], scales: &[i8], second: &[f32]) -> Vec<f32> {
    let fields = matrix.fields();
    let arena = Arena::host(None).unwrap();
    let mut record = arena.alloc(Category::Parameters, DType::I8, fields.bytes).unwrap();
    let mut view = record.view_mut();
    let bytes = view.as_slice_mut::<i8>().unwrap();
    bytes[fields.codes].iter_mut().zip(codes.chunks(2)).for_each(|(byte, two)| {
        *byte = (two[0] << 4 | two.get(1).copied().unwrap_or(0)) as i8;
    });
    bytes[fields.scales].copy_from_slice(scales);
    let second: Vec<i8> = second.iter().flat_map(|x| x.to_ne_bytes()).map(|byte| byte as i8).collect();
    bytes[fields.second].copy_from_slice(&second);
    let mut values = vec![0f32; matrix.len()];
    kernels.unpack(&Unpack { matrix, dtype: DType::F32 }, record.view(), ViewMut::of(&mut values)).unwrap();
    values
}

pub fn same_bits(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        // Zeros of either sign: a negative entry times a scale of zero.
        assert!(a.to_bits() == b.to_bits() || (*a == 0.0 && *b == 0.0), "{what}: element {i} is {a:e}, theirs {b:e}");
    }
}

#[test]
fn tables_are_the_published_ones() {
    let vectors = Vectors::open();
    same_bits(&NF4, vectors.get("nf4"), "nf4");
    same_bits(&DYNAMIC, vectors.get("dynamic"), "dynamic");
    // QLoRA, appendix E, as printed.
    let printed = "-1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635 \
                   -0.18477343022823334 -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725 \
                   0.24611230194568634 0.33791524171829224 0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0";
    let printed: Vec<f32> = printed.split_whitespace().map(|x| x.parse().unwrap()).collect();
    same_bits(&NF4, &printed, "QLoRA's table");
}

#[test]
fn nf4_codes_scales_and_values_are_those_of_bitsandbytes() {
    let vectors = Vectors::open();
    for (name, cols) in TENSORS {
        let get = |key: &str| vectors.get(&format!("{name}.{key}"));
        let (x, codes) = (get("x"), vectors.codes(&format!("{name}.codes")));
        let matrix = |packing| Packed { packing, rows: x.len() / cols, cols };
        let nf4 = matrix(Packing::Nf4);
        for kernels in [&Cpu::new(1) as &dyn Kernels, &Cpu::new(3), &Reference] {
            let what = format!("{name}, {}", kernels.name());
            let (ours, scales) = pack(kernels, &nf4, x);
            let ours: Vec<u8> = ours.iter().flat_map(|byte| [*byte as u8 >> 4, *byte as u8 & 15]).collect();
            // Theirs has an even number of codes; the one behind an odd end stands for nothing.
            assert_eq!(ours[..x.len()], codes[..x.len()], "{what}: codes");
            same_bits(&scales, get("absmax"), &format!("{what}: scales"));
            let bytes: Vec<i8> = scales.iter().flat_map(|x| x.to_ne_bytes()).map(|byte| byte as i8).collect();
            same_bits(&unpack(kernels, nf4, &codes, &bytes, &[]), get("plain"), &format!("{what}: values"));

            let double = DoubleScales::of(&scales);
            // A mean in f32 depends on the order of its sum: theirs is within a few units in the last place of the
            // exact one, ours is that.
            let (offset, theirs) = (double.offset, get("offset")[0]);
            assert!((offset - theirs).abs() <= 4.0 * f32::EPSILON * theirs.abs(), "{what}: mean {offset} for {theirs}");
            let around = DoubleScales::around(theirs, &scales);
            let scale_codes = vectors.codes(&format!("{name}.scale_codes"));
            assert_eq!(around.codes, scale_codes, "{what}: codes of scales");
            for (ours, theirs) in around.second.iter().zip(get("second")) {
                // Of a block of equal scales they store 1e-38 for 0 where it is a short one.
                assert!(ours == theirs || (*ours == 0.0 && *theirs <= 1e-38), "{what}: {ours:e} for {theirs:e}");
            }
            let (second, bytes) = ([get("second"), &[theirs]].concat(), as_i8(&scale_codes));
            let values = unpack(kernels, matrix(Packing::Nf4Double), &codes, &bytes, &second);
            same_bits(&values, get("double"), &format!("{what}: values of coded scales"));
        }
        // With the exact mean the codes of scales are these too, but where one stood on the edge.
        let (_, scales) = pack(&Cpu::new(1), &nf4, x);
        let (double, codes) = (DoubleScales::of(&scales), vectors.codes(&format!("{name}.scale_codes")));
        let differ = double.codes.iter().zip(&codes).filter(|(a, b)| a != b);
        assert!(differ.count() <= scales.len() / 200, "{name}");
    }
}

pub fn as_i8(bytes: &[u8]) -> Vec<i8> {
    bytes.iter().map(|byte| *byte as i8).collect()
}

/// Rows of zeros and those too small for 127/largest in f32 have no code there: a NaN or an infinity made a whole number.
#[test]
fn int8_codes_are_those_of_bitsandbytes() {
    let vectors = Vectors::open();
    for (name, cols) in TENSORS {
        let get = |key: &str| vectors.get(&format!("{name}.{key}"));
        let x = get("x");
        let matrix = Packed { packing: Packing::Int8, rows: x.len() / cols, cols };
        let (codes, scales) = pack(&Cpu::new(2), &matrix, x);
        let largest = get("int8_absmax");
        same_bits(&scales, largest, name);
        for (row, largest) in largest.iter().enumerate() {
            let row = row * cols..(row + 1) * cols;
            let ours: Vec<f32> = codes[row.clone()].iter().map(|code| f32::from(*code)).collect();
            match (1.0 / largest * 127.0).is_finite() {
                true => assert_eq!(ours, get("int8")[row], "{name}"),
                false => assert!(ours.iter().all(|code| *code == 0.0), "{name}"),
            }
        }
    }
}
