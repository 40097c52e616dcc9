"use strict";
/* The start of a page that has one history in it. */
(() => {
  const page = document.getElementById("page"), history = JSON.parse(document.getElementById("history").textContent);
  const show = () => Player.show(page, history, Player.asked(location.hash));
  addEventListener("hashchange", show);
  show();
})();
