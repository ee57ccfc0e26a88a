//! Promises that must hold for any text whatever: shared by the fuzz target and by a seeded run among the tests.

use propylon_config::{Source, format};

use crate::{Language, import};

/// A text in one of the three languages, which the first byte chooses: refused, or a text of TOML and notes that point
/// into what was read. The name is a part of the outcome, and cannot break it.
pub fn text(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    let language = [Language::Haproxy, Language::Nginx, Language::Caddy][usize::from(choice % 3)];
    let lines = text.split('\n').count();
    let imported = match import(language, "a\n[b]\u{1b}.cfg", &text) {
        Ok(imported) => imported,
        Err(note) => return assert!((1..=lines).contains(&note.line), "{}: {}", note.line, note.what),
    };
    for note in &imported.notes {
        assert!(note.line <= lines, "{}: {}", note.line, note.what);
        assert!(!note.what.is_empty() && !note.fix.is_empty(), "{}", note.line);
    }
    let source = Source { name: "out.toml".into(), base: "".into(), text: imported.text };
    assert!(format(&source).is_ok_and(|text| text == source.text), "{}", source.text);
}

#[cfg(test)]
mod tests {
    /// Words of the three languages, and what has broken parsers before.
    const PIECES: &[&str] = &[
        "frontend a\n",
        "backend b\n",
        "bind :80\n",
        "acl x path_beg /a\n",
        "http-request deny if x\n",
        "use_backend b if ",
        "!x",
        " or ",
        "server s 10.0.0.1:80\n",
        "server {",
        "location / {",
        "location ~ \\.php$ {",
        "proxy_pass http://b;",
        "listen 80;",
        "server_name *.a.example;",
        "return 301 https://$host$request_uri;",
        "deny all;",
        "allow 10.0.0.0/8;",
        "}",
        "}\n",
        "{\n",
        "a.example {\n",
        "reverse_proxy b:80\n",
        "handle_path /a* {\n",
        "@m path /x*\n",
        "respond @m 403\n",
        "rewrite ^/(.*)$ /$1 last;",
        "\"",
        "'",
        "\\",
        "#",
        "$",
        "{",
        ";",
        " ",
        "\n",
        "\u{e9}",
        "\0",
        "%[src]",
        "if",
    ];

    #[test]
    fn promises_hold_for_many_texts() {
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..1_500 {
            let mut bytes = vec![random.u8(..)];
            for _ in 0..random.usize(..14) {
                bytes.extend_from_slice(PIECES[random.usize(..PIECES.len())].as_bytes());
            }
            super::text(&bytes);
        }
    }
}
