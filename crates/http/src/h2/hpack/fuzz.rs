//! Promises for any header block: shared by the fuzz target and by a seeded run among the tests. Panics when one is
//! broken.

use super::*;
use crate::h1::Field;
use crate::h2::FieldWriter;

const LIMITS: ListLimits = ListLimits { list_bytes: 16 * 1024, fields: 100 };

/// Blocks of one connection, with their lengths before them in a byte each.
pub fn blocks(mut input: &[u8]) {
    let (mut decoder, mut encoder, mut again) = (Decoder::new(4096), Encoder::new(), Decoder::new(4096));
    let mut recurring = Recurring::default();
    while let Some((length, rest)) = input.split_first() {
        let (block, rest) = rest.split_at(rest.len().min(usize::from(*length) * 4));
        input = rest;
        let Some((text, fields)) = read(&mut decoder, block) else { return };
        let mut out = Vec::new();
        let mut writer = encoder.begin(&mut recurring, &mut out);
        for field in &fields {
            let (name, value) = (field.name.bytes(&text), field.value.bytes(&text));
            match field.kind {
                crate::h1::Name::Pseudo(pseudo) => writer.pseudo(pseudo, [value, b""]),
                _ => writer.field(name, value, field.secret),
            }
        }
        let (same_text, same_fields) = read(&mut again, &out).expect("what was written is read");
        assert_eq!(encoder.table_bytes(), again.table_bytes());
        let list = |text: &[u8], fields: &[Field]| -> Vec<(Vec<u8>, Vec<u8>)> {
            fields.iter().map(|field| (field.name.bytes(text).to_vec(), field.value.bytes(text).to_vec())).collect()
        };
        assert_eq!(list(&same_text, &same_fields), list(&text, &fields));
        for (field, same) in fields.iter().zip(&same_fields) {
            let is_pseudo = matches!(field.kind, crate::h1::Name::Pseudo(_));
            assert!(!field.secret || is_pseudo || same.secret, "a secret stays one");
        }
    }
}

fn read(decoder: &mut Decoder, block: &[u8]) -> Option<(Vec<u8>, Vec<Field>)> {
    let (mut text, mut fields) = (Vec::new(), Vec::new());
    let decoded = decoder.decode(block, &mut text, &LIMITS, &mut |_: &[u8], field| fields.push(field)).ok()?;
    assert!(text.len() <= LIMITS.list_bytes + 4 * LIMITS.fields, "{} bytes", text.len());
    assert!(fields.len() <= LIMITS.fields);
    assert!(decoder.table_bytes() <= 4096 && decoder.owned_bytes() <= 3 * 4096);
    for field in &fields {
        let (name, value) = (field.name.bytes(&text), field.value.bytes(&text));
        assert!(crate::h1::check_value(value).is_none() && !name.is_empty());
        assert_eq!(&text[field.name.end as usize..field.value.start as usize], b": ");
        assert_eq!(&text[field.value.end as usize..][..2], b"\r\n");
    }
    assert!(decoded.is_cut || decoded.flaw.is_some() || fields.len() == decoded.fields);
    Some((text, fields))
}
