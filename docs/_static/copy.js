// Each block of code has a button that copies it; of a terminal's session, only the commands behind "$ ".
// A browser offers no clipboard to pages over plain HTTP, except to those of its own machine.
for (const block of navigator.clipboard ? document.querySelectorAll("div.highlight") : []) {
  const code = block.querySelector("pre");
  if (!code || block.closest(".cell_output")) continue;
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    const lines = code.textContent.trimEnd().split("\n");
    const commands = lines.filter(line => line.startsWith("$ ")).map(line => line.slice(2));
    try {
      await navigator.clipboard.writeText((commands.length ? commands : lines).join("\n"));
      button.textContent = "copied";
    } catch {
      button.textContent = "not allowed";
    }
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  });
  block.append(button);
}
