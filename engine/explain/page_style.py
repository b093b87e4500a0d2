"""How the page looks and moves: everything it needs is in it."""

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1b1d21; --quiet: #5b616b; --line: #d6d9de; --soft: #f4f5f7;
  --accent: #0a56c9; --mark: #eaf1fd; --warn: #8a4b00 }
@media (prefers-color-scheme: dark) { :root { --ground: #16181c; --text: #e7e9ec; --quiet: #a0a6b0; --line: #363b44;
  --soft: #1f2329; --accent: #82b1ff; --mark: #1c2a40; --warn: #ffb866 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.25rem; max-width: 88rem; background: var(--ground); color: var(--text);
  font: 0.9375rem/1.45 system-ui, sans-serif }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; overflow-wrap: anywhere }
header p { margin: 0 0 1rem; color: var(--quiet); max-width: 60rem }
table { border-collapse: collapse; width: 100% }
th { text-align: left; font-weight: 600 }
small { display: block; font-weight: 400; font-size: .8125rem; color: var(--quiet) }
em { font-style: normal; font-weight: 400; font-size: .75rem; color: var(--accent); white-space: nowrap }
.matrix { table-layout: fixed }
.matrix thead th { vertical-align: bottom; padding: .5rem; border-bottom: 2px solid var(--line) }
.matrix tbody th { vertical-align: top; padding: .625rem .5rem; overflow-wrap: anywhere }
.matrix tbody tr { border-bottom: 1px solid var(--line) }
.matrix td { padding: .25rem; height: 1px; vertical-align: top }
.matrix .asked { background: var(--mark) }
button { font: inherit; color: inherit; background: var(--ground); border: 1px solid var(--line);
  border-radius: .375rem; padding: .375rem .625rem; cursor: pointer }
button:hover { border-color: var(--accent) }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 1px }
.matrix button { display: flex; flex-direction: column; width: 100%; height: 100%; text-align: left;
  font-size: .8125rem }
.matrix .level { display: none }
.fact { display: grid; grid-template-columns: 3.75rem 1fr }
.fact i { font-style: normal; color: var(--quiet) }
.fact b { font-weight: 600 }
.fact .off { font-weight: 400; color: var(--quiet) }
.twin { display: block; margin-top: .25rem; color: var(--accent) }
.refused { color: var(--warn); font-weight: 600 }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
dialog { width: min(72rem, 100% - 1.5rem); max-height: calc(100% - 1.5rem); padding: 0 1.25rem 1.25rem; overflow: auto;
  background: var(--ground); color: var(--text); border: 1px solid var(--line); border-radius: .5rem }
dialog::backdrop { background: rgb(0 0 0 / .5) }
dialog form { position: sticky; top: 0; display: flex; justify-content: space-between; align-items: center; gap: 1rem;
  padding: .75rem 0; background: var(--ground); border-bottom: 1px solid var(--line) }
h2 { font-size: 1.1rem; margin: 0; overflow-wrap: anywhere }
summary { font-weight: 600; padding: .5rem 0; cursor: pointer }
.reasons { font-size: .8125rem; margin-bottom: .75rem }
.reasons th, .reasons td { padding: .3rem .5rem; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere }
.reasons thead th { background: var(--soft) }
.reasons tbody th { min-width: 9rem }
.reasons td:nth-child(n+3):not(:last-child) { min-width: 5.5rem }
.reasons td:last-child { width: 45% }
@media (max-width: 46rem) {
  body { padding: .75rem }
  .matrix thead { position: absolute; clip-path: inset(50%) }
  .matrix, .matrix tbody { display: block }
  .matrix tbody tr { display: grid; grid-template-columns: 1fr 1fr; padding-bottom: .5rem }
  .matrix tbody th { grid-column: 1 / -1; padding-bottom: .25rem }
  .matrix td { height: auto }
  .matrix .level { display: block; font-weight: 600 }
  dialog { padding: 0 .75rem .75rem }
  .reasons thead { position: absolute; clip-path: inset(50%) }
  .reasons, .reasons tbody { display: block }
  .reasons tr { display: flex; flex-wrap: wrap; gap: 0 .75rem; padding: .4rem 0; border-bottom: 1px solid var(--line) }
  .reasons th, .reasons td { padding: 0; border: 0; min-width: 0 }
  .reasons tbody th, .reasons td:last-child { width: 100%; min-width: 0 }
}
"""

SCRIPT = """
const open = id => { const found = document.getElementById(id); if (found && found.showModal) { found.showModal();
  history.replaceState(null, '', '#' + id) } };
document.addEventListener('click', event => {
  const button = event.target.closest('[data-open]');
  if (button) open(button.dataset.open);
  else if (event.target.nodeName === 'DIALOG') event.target.close();
});
for (const dialog of document.querySelectorAll('dialog'))
  dialog.addEventListener('close', () => history.replaceState(null, '', location.pathname + location.search));
document.addEventListener('keydown', event => {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const from = document.activeElement;
  if (!step || !from || !from.dataset.open) return;
  const row = +from.dataset.row + step[0], level = +from.dataset.level + step[1];
  const next = document.querySelector(`[data-row="${row}"][data-level="${level}"]`);
  if (next) { next.focus(); event.preventDefault() }
});
if (location.hash) open(location.hash.slice(1));
"""
